"""The examples of google-cloud-datastore, with the emulator of the environment.

They have the same names and results as in node/examples.mjs. Identifiers are text, as in
JavaScript.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Iterable
from typing import Any

from google.api_core import exceptions
from google.cloud import datastore
from google.cloud.datastore.query import And, Or, PropertyFilter

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


def missing(client: Client) -> object:
    put_tasks(client)
    found = client.get_multi([client.key("Task", i) for i in (1, 9, 2)])
    return {"found": sorted(ids(found)), "none": client.get(client.key("Task", 9))}


def int64_and_double(client: Client) -> object:
    key = client.key("Number", 1)
    client.put(made(key, large=2**63 - 1, small=-(2**63), whole=3.0, list=[2**53 + 1, 1.0]))
    number = client.get(key)

    def found(value: float) -> int:
        query = client.query(kind="Number")
        query.add_filter(filter=PropertyFilter("whole", "=", value))
        return len(list(query.fetch()))

    assert [type(each) for each in (number["whole"], *number["list"])] == [float, int, float]
    return {
        "large": str(number["large"]),
        "small": str(number["small"]),
        "whole": number["whole"],
        "list": [str(number["list"][0]), number["list"][1]],
        "found": [found(3.0), found(3)],
    }


def insert_update_upsert_delete(client: Client) -> object:
    key = client.key("Task", "a")

    def commit(operation: str, n: int) -> None:
        # This client has no insert and no update of its own.
        batch = client.batch()
        batch.begin()
        batch.put(made(key, n=n))
        (mutation,) = batch.mutations
        entity = copy.deepcopy(mutation._pb.upsert)
        getattr(mutation._pb, operation).CopyFrom(entity)
        batch.commit()

    seen: list[object] = [code(lambda: commit("update", 0))]
    seen.append(code(lambda: commit("insert", 1)))
    seen.append(code(lambda: commit("insert", 2)))
    seen.append(client.get(key)["n"])
    commit("update", 3)
    commit("upsert", 4)
    seen.append(client.get(key)["n"])
    client.delete(key)
    client.delete(key)
    seen.append(client.get(key))
    return seen


def ids_are_allocated(client: Client) -> object:
    task = made(client.key("Task"), n=1)
    client.put(task)
    allocated = client.allocate_ids(client.key("Task"), 3)
    return [client.get(task.key)["n"], len({key.id for key in (*allocated, task.key)})]


def filters(client: Client) -> object:
    put_tasks(client)

    def run(*given: Any, order: tuple[str, ...] = (), **options: int) -> list[str]:
        query = client.query(kind="Task", order=order)
        for each in given:
            query.add_filter(filter=each)
        return ids(query.fetch(**options))

    at_least = PropertyFilter("priority", ">", 2)
    return [
        run(
            PropertyFilter("priority", ">", 1),
            PropertyFilter("done", "=", False),
            order=("-priority",),
        ),
        run(
            Or(
                [
                    PropertyFilter("priority", "=", 1),
                    And([PropertyFilter("done", "=", True), at_least]),
                ]
            )
        ),
        run(PropertyFilter("priority", "IN", [1, 3, 9])),
        run(PropertyFilter("priority", "NOT_IN", [1, 3, 9])),
        run(PropertyFilter("priority", "!=", 3)),
        run(PropertyFilter("tags", "=", "t2")),
        run(PropertyFilter("__key__", ">", client.key("Task", 3))),
        run(order=("priority",), limit=2, offset=1),
    ]


def ancestors(client: Client) -> object:
    put_tasks(client)
    client.put(made(client.key("Task", 1, "Task", 100)))
    parent = client.key("Task", 1)
    return [
        ids(client.query(kind="Task", ancestor=parent).fetch()),
        ids(client.query(ancestor=parent).fetch()),
    ]


def cursors(client: Client) -> object:
    put_tasks(client)
    seen = []
    cursor = None
    while True:
        pages = client.query(kind="Task", order=["priority"]).fetch(limit=2, start_cursor=cursor)
        seen.append(ids(next(pages.pages)))
        cursor = pages.next_page_token
        if not cursor:
            return seen


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


def unindexed(client: Client) -> object:
    key = client.key("Task", 1)
    long = "x" * 2000
    refused = code(lambda: client.put(made(key, text=long)))
    note = made(None, ("note",), note=long)
    client.put(made(key, ("text",), text=long, list=[note], inner=note))
    task = client.get(key)
    query = client.query(kind="Task")
    query.add_filter(filter=PropertyFilter("text", "=", "x"))
    lengths = [len(task["text"]), len(task["list"][0]["note"]), len(task["inner"]["note"])]
    return [refused, *lengths, len(list(query.fetch()))]


EXAMPLES: dict[str, Callable[[Client], object]] = {
    "save_and_get": save_and_get,
    "missing": missing,
    "int64_and_double": int64_and_double,
    "insert_update_upsert_delete": insert_update_upsert_delete,
    "ids_are_allocated": ids_are_allocated,
    "filters": filters,
    "ancestors": ancestors,
    "cursors": cursors,
    "keys_only_and_projection": keys_only_and_projection,
    "stream": stream,
    "aggregations": aggregations,
    "transactions": transactions,
    "unindexed": unindexed,
}
