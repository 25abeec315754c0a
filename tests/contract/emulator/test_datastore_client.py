"""The package google-cloud-datastore with the emulator, beyond its examples (test_clients.py)."""

from __future__ import annotations

from google.cloud import datastore
from google.cloud.datastore.query import PropertyFilter
from google.cloud.datastore.query_profile import ExplainOptions


def put(client: datastore.Client, kind: str, count: int) -> None:
    for i in range(1, count + 1):
        entity = datastore.Entity(client.key(kind, i))
        entity.update(priority=i, done=i % 2 == 0)
        client.put(entity)


def test_a_transaction_that_begins_with_its_first_read(datastore_client: datastore.Client) -> None:
    client = datastore_client
    put(client, "Task", 1)
    with client.transaction(begin_later=True) as transaction:
        task = client.get(client.key("Task", 1))
        assert transaction.id
        task["priority"] = 50
        transaction.put(task)
    assert client.get(client.key("Task", 1))["priority"] == 50
    with client.transaction(begin_later=True) as transaction:
        transaction.put(datastore.Entity(client.key("Task", 2)))
    assert client.get(client.key("Task", 2)) is not None
    client.reserve_ids_sequential(client.key("Task", 1), 3)


def test_databases_are_kept_apart(datastore_client: datastore.Client) -> None:
    other = datastore.Client(database="other")
    put(other, "Task", 1)
    assert list(datastore_client.query(kind="Task").fetch()) == []
    (found,) = other.query(kind="Task").fetch()
    assert found.key == other.key("Task", 1)


def test_the_documented_metadata_queries(datastore_client: datastore.Client) -> None:
    client = datastore_client
    put(client, "Account", 1)
    put(client, "Task", 3)
    for kind, expected in (("__namespace__", [1]), ("__kind__", ["Account", "Task"])):
        query = client.query(kind=kind)
        query.keys_only()
        assert [entity.key.id_or_name for entity in query.fetch()] == expected
    properties = client.query(kind="__property__", ancestor=client.key("__kind__", "Task"))
    found = {entity.key.name: entity["property_representation"] for entity in properties.fetch()}
    assert found == {"done": ["BOOLEAN"], "priority": ["INT64"]}
    first = client.key("__kind__", "Task", "__property__", "priority")
    from_priority = client.query(kind="__property__")
    from_priority.keys_only()
    from_priority.add_filter(filter=PropertyFilter("__key__", ">=", first))
    assert [entity.key for entity in from_priority.fetch()] == [first]


def test_plans_and_statistics(datastore_client: datastore.Client) -> None:
    put(datastore_client, "Task", 3)
    planned = datastore_client.query(
        kind="Task", order=["-priority"], explain_options=ExplainOptions(analyze=False)
    ).fetch()
    indexes = planned.explain_metrics.plan_summary.indexes_used
    assert [index["properties"] for index in indexes] == ["(priority DESC, __name__ ASC)"]
    assert list(planned) == []
    aggregation = datastore_client.aggregation_query(
        datastore_client.query(kind="Task"), explain_options=ExplainOptions(analyze=True)
    )
    results = aggregation.count(alias="all").sum("priority", alias="total").fetch()
    assert {each.alias: each.value for row in results for each in row} == {"all": 3, "total": 6}
    assert results.explain_metrics.execution_stats.results_returned == 1
