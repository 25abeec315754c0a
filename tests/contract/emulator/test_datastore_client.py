"""The package google-cloud-datastore with the emulator, beyond its examples (test_clients.py)."""

from __future__ import annotations

from google.cloud import datastore
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
