"""The package google-cloud-datastore with the emulator, beyond its examples (test_clients.py)."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import datastore


def put(client: datastore.Client, count: int = 5) -> list[Any]:
    entities = []
    for i in range(1, count + 1):
        task = datastore.Entity(client.key("Task", i), exclude_from_indexes=("text",))
        task.update(priority=i, done=i % 2 == 0, text="x" * 2000, tags=["a", f"t{i}"])
        entities.append(task)
    client.put_multi(entities)
    return entities


def ids(results: Any) -> list[int]:
    return [result.key.id for result in results]


def test_round_trip(datastore_client: datastore.Client) -> None:
    client = datastore_client
    task = datastore.Entity(client.key("List", "default", "Task", 7))
    inner = datastore.Entity()
    inner["x"] = [1, None]
    task.update(
        text="ü",
        at=datetime.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC),
        number=-(2**63),
        real=2.5,
        blob=b"\x00",
        nothing=None,
        empty=[],
        many=["a", 1, True],
        inner=inner,
        other=client.key("K", "n"),
        where=datastore.helpers.GeoPoint(1.0, 2.0),
    )
    client.put(task)
    assert client.get(task.key) == task
    client.delete(task.key)
    assert client.get(task.key) is None


def test_get_multi_reports_missing(datastore_client: datastore.Client) -> None:
    put(datastore_client, 2)
    missing: list[Any] = []
    keys = [datastore_client.key("Task", i) for i in (1, 2, 3)]
    assert ids(datastore_client.get_multi(keys, missing=missing)) == [1, 2]
    assert ids(missing) == [3]


def test_incomplete_keys_and_allocation(datastore_client: datastore.Client) -> None:
    task = datastore.Entity(datastore_client.key("Task"))
    datastore_client.put(task)
    assert datastore_client.get(task.key) == task
    allocated = datastore_client.allocate_ids(datastore_client.key("Task"), 3)
    assert len(set(ids_of_keys(allocated))) == 3
    datastore_client.reserve_ids_sequential(datastore_client.key("Task", 1), 3)


def ids_of_keys(keys: Any) -> list[int]:
    return [key.id for key in keys]


def test_cursors_offsets_and_keys_only(datastore_client: datastore.Client) -> None:
    put(datastore_client)
    query = datastore_client.query(kind="Task", order=["priority"])
    query.keys_only()
    pages = query.fetch(limit=2)
    assert ids(pages) == [1, 2]
    rest = query.fetch(start_cursor=pages.next_page_token)
    assert ids(rest) == [3, 4, 5]
    assert ids(query.fetch(offset=3)) == [4, 5]


def test_results_larger_than_a_batch(datastore_client: datastore.Client) -> None:
    big = []
    for i in range(1, 9):
        item = datastore.Entity(datastore_client.key("Big", i), exclude_from_indexes=("b",))
        item["b"] = b"x" * 900_000
        big.append(item)
    datastore_client.put_multi(big)
    assert ids(datastore_client.query(kind="Big").fetch()) == list(range(1, 9))
    found = datastore_client.get_multi([item.key for item in big])
    assert sorted(ids(found)) == list(range(1, 9))


def test_transactions(datastore_client: datastore.Client) -> None:
    client = datastore_client
    key = client.key("Counter", "c")
    with client.transaction():
        counter = datastore.Entity(key)
        counter["n"] = 1
        client.put(counter)
    transaction = client.transaction()
    transaction.begin()
    counter = client.get(key, transaction=transaction)
    other = datastore.Entity(key)
    other["n"] = 10
    datastore.Client().put(other)
    counter["n"] += 1
    transaction.put(counter)
    # Over HTTP the client has no Aborted, only its base class.
    with pytest.raises(exceptions.Conflict, match="contention"):
        transaction.commit()
    assert client.get(key)["n"] == 10


def test_a_transaction_that_begins_with_its_first_read(
    datastore_client: datastore.Client,
) -> None:
    client = datastore_client
    put(client, 1)
    with client.transaction(begin_later=True) as transaction:
        task = client.get(client.key("Task", 1))
        assert transaction.id
        task["priority"] = 50
        transaction.put(task)
    assert client.get(client.key("Task", 1))["priority"] == 50
    with client.transaction(begin_later=True) as transaction:
        transaction.put(datastore.Entity(client.key("Task", 2)))
    assert client.get(client.key("Task", 2)) is not None


def test_read_only_and_read_time(datastore_client: datastore.Client) -> None:
    put(datastore_client, 1)
    with datastore_client.transaction(read_only=True):
        assert datastore_client.get(datastore_client.key("Task", 1))["priority"] == 1
