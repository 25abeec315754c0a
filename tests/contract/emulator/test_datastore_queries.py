"""Queries of google-cloud-datastore that need more than entities: metadata, plans, statistics."""

from __future__ import annotations

import datetime

import pytest
from google.cloud import datastore
from google.cloud.datastore.query import PropertyFilter
from google.cloud.datastore.query_profile import ExplainOptions, QueryExplainError


@pytest.fixture
def client(datastore_client: datastore.Client) -> datastore.Client:
    for kind, count in (("Account", 1), ("Task", 3)):
        for i in range(1, count + 1):
            entity = datastore.Entity(datastore_client.key(kind, i))
            entity.update(priority=i, done=i % 2 == 0)
            datastore_client.put(entity)
    return datastore_client


def test_the_documented_metadata_queries(client: datastore.Client) -> None:
    namespaces = client.query(kind="__namespace__")
    namespaces.keys_only()
    assert [entity.key.id_or_name for entity in namespaces.fetch()] == [1]
    kinds = client.query(kind="__kind__")
    kinds.keys_only()
    assert [entity.key.id_or_name for entity in kinds.fetch()] == ["Account", "Task"]
    ancestor = client.key("__kind__", "Task")
    properties = client.query(kind="__property__", ancestor=ancestor)
    assert {
        entity.key.name: entity["property_representation"] for entity in properties.fetch()
    } == {"done": ["BOOLEAN"], "priority": ["INT64"]}
    from_priority = client.query(kind="__property__")
    from_priority.keys_only()
    first = client.key("__kind__", "Task", "__property__", "priority")
    from_priority.add_filter(filter=PropertyFilter("__key__", ">=", first))
    assert [entity.key for entity in from_priority.fetch()] == [first]


def test_a_plan(client: datastore.Client) -> None:
    query = client.query(kind="Task", explain_options=ExplainOptions(analyze=False))
    query.order = ["-priority"]
    results = query.fetch()
    indexes = results.explain_metrics.plan_summary.indexes_used
    assert [index["properties"] for index in indexes] == ["(priority DESC, __name__ ASC)"]
    assert list(results) == []
    with pytest.raises(QueryExplainError):
        _ = results.explain_metrics.execution_stats


def test_statistics(client: datastore.Client) -> None:
    results = client.query(kind="Task", explain_options=ExplainOptions(analyze=True)).fetch()
    assert len(list(results)) == 3
    stats = results.explain_metrics.execution_stats
    assert (stats.results_returned, stats.read_operations) == (3, 3)
    assert stats.execution_duration > datetime.timedelta(0)


def test_statistics_of_an_aggregation(client: datastore.Client) -> None:
    over = client.query(kind="Task")
    aggregation = client.aggregation_query(over, explain_options=ExplainOptions(analyze=True))
    results = aggregation.count(alias="all").sum("priority", alias="total").fetch()
    found = {each.alias: each.value for row in results for each in row}
    assert found == {"all": 3, "total": 6}
    assert results.explain_metrics.execution_stats.results_returned == 1
