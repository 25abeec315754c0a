"""The examples of google-cloud-datastore, with the emulator of the environment.

Each kind of RPC once, with the names and results of node/examples.mjs. Identifiers are text, as in
JavaScript.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from typing import Any

from google.api_core import exceptions
from google.cloud import datastore
from google.cloud.datastore.query import PropertyFilter

Client = datastore.Client


def path(key: datastore.Key) -> list[str]:
    return [str(each) for each in key.flat_path]


def ids(entities: Iterable[datastore.Entity]) -> list[str]:
    return [str(entity.key.id or entity.key.name) for entity in entities]


def made(key: datastore.Key | None, unindexed: tuple[str, ...] = (), **properties: Any) -> Any:
    entity: Any = datastore.Entity(key, exclude_from_indexes=unindexed)
    entity.update(properties)
    return entity


def code(call: Callable[[], Any]) -> int:
    """Return the status code of a call: gRPC's, or that of the body over HTTP."""
    try:
        call()
    except exceptions.GoogleAPICallError as error:
        if error.grpc_status_code is not None:
            return int(error.grpc_status_code.value[0])
        return int(error.errors[0].code)
    return 0


def put_tasks(client: Client) -> None:
    client.put_multi(
        [
            made(client.key("Task", i), priority=i, done=i % 2 == 0, tags=["all", f"t{i}"])
            for i in range(1, 6)
        ]
    )


def save_and_get(client: Client) -> object:
    key = client.key("List", "default", "Task", 7)
    client.put(
        made(
            key,
            text="ü",
            at=datetime.datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=datetime.UTC),
            number=42,
            real=2.5,
            blob=bytes([0, 255]),
            nothing=None,
            empty=[],
            many=["a", 1, True],
            inner=made(None, x=[1, None], deep=made(None, y="z")),
            other=client.key("K", "n"),
            where=datastore.helpers.GeoPoint(1, 2),
        )
    )
    task = client.get(key)
    return {
        **task,
        "at": task["at"].isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "key": path(task.key),
        "blob": list(task["blob"]),
        "other": path(task["other"]),
        "where": [task["where"].latitude, task["where"].longitude],
    }


def ids_are_allocated(client: Client) -> object:
    task = made(client.key("Task"), n=1)
    client.put(task)
    allocated = client.allocate_ids(client.key("Task"), 3)
    return [client.get(task.key)["n"], len({key.id for key in (*allocated, task.key)})]


def keys_only_and_projection(client: Client) -> object:
    put_tasks(client)
    keys = client.query(kind="Task")
    keys.keys_only()
    tags = client.query(kind="Task", projection=["tags"], order=["priority", "tags"])
    tags.add_filter(filter=PropertyFilter("priority", "<", 3))
    distinct = client.query(kind="Task", projection=["done"], distinct_on=["done"])
    return [
        [dict(each) for each in keys.fetch(limit=1)],
        [each["tags"] for each in tags.fetch()],
        [each["done"] for each in distinct.fetch()],
    ]


def stream(client: Client) -> object:
    blob = bytes(900_000)
    client.put_multi([made(client.key("Big", i), ("blob",), blob=blob) for i in range(1, 9)])
    return [[*ids([each]), len(each["blob"])] for each in client.query(kind="Big").fetch()]


def aggregations(client: Client) -> object:
    put_tasks(client)

    def run(query: Any) -> dict[str, Any]:
        (results,) = query.fetch()
        return {result.alias: result.value for result in results}

    done = client.query(kind="Task")
    done.add_filter(filter=PropertyFilter("done", "=", True))
    tasks = client.aggregation_query(client.query(kind="Task"))
    none = client.aggregation_query(client.query(kind="None"))
    return [
        run(tasks.count("n").sum("priority", "total").avg("priority", "mean")),
        run(client.aggregation_query(done).count("n")),
        run(none.count("n").sum("x", "total")),
    ]


def transactions(client: Client) -> object:
    source, target = client.key("Account", "from"), client.key("Account", "to")
    client.put_multi([made(source, balance=100), made(target, balance=0)])
    with client.transaction():
        a, b = client.get(source), client.get(target)
        a["balance"] -= 30
        b["balance"] += 30
        client.put_multi([a, b])
    balances = sorted(each["balance"] for each in client.get_multi([source, target]))

    lost = client.transaction()
    lost.begin()
    seen = client.get(source, transaction=lost)
    client.put(made(source, balance=1))
    lost.put(made(source, balance=seen["balance"] + 1))
    conflict = code(lost.commit)

    rolled_back = client.transaction()
    rolled_back.begin()
    rolled_back.put(made(source, balance=2))
    rolled_back.rollback()

    with client.transaction(read_only=True):
        still = client.get(source)["balance"]
    return [balances, conflict, still]


EXAMPLES: dict[str, Callable[[Client], object]] = {
    "save_and_get": save_and_get,
    "ids_are_allocated": ids_are_allocated,
    "keys_only_and_projection": keys_only_and_projection,
    "stream": stream,
    "aggregations": aggregations,
    "transactions": transactions,
}
