"""The work for a request does not grow with its kind, and not from page to page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.emulator.builders import entity, key
from tests.unit.emulator.subject import Conditions, Subject, query
from userlock_emulator.datastore import access, query_runner
from userlock_emulator.datastore.protos import Mutation, QueryPb, QueryResultBatch
from userlock_emulator.datastore.rows import Reader

SMALL, LARGE = 130, 1300


@pytest.fixture(scope="module")
def sizes() -> Iterator[tuple[Subject, Subject]]:
    """Provide two databases; in each, every value of g occurs ten times."""
    made = Subject.in_memory(), Subject.in_memory()
    for engine, size in zip(made, (SMALL, LARGE), strict=True):
        numbers = (
            {"all": 1, "n": i, "g": i % (size // 10), "a": i % 2, "b": i * 3 % 5, "c": i * 11 % 13}
            for i in range(size)
        )
        engine.commit(
            *(Mutation(upsert=entity(key("K", i + 1), **each)) for i, each in enumerate(numbers))
        )
    yield made
    for engine in made:
        engine.storage.close()


def steps(engine: Subject, act: Callable[[Subject], object]) -> int:
    """Return the steps of SQLite's virtual machine."""
    counted: list[int] = []
    connection = engine.storage._connection
    connection.set_progress_handler(lambda: counted.append(1), 1)
    act(engine)
    connection.set_progress_handler(None, 1)
    return len(counted)


@pytest.mark.parametrize(
    "act",
    [
        lambda engine: engine.lookup(key("K", 50)),
        lambda engine: engine.put(entity(key("K", 60), n=-1, g=-1)),
        lambda engine: engine.run(query("K", (("n", "=", 50),))),
        lambda engine: engine.run(query("K", (("n", ">", 10), ("n", "<", 31)))),
        lambda engine: engine.run(query("K", (("g", "=", 3),), ("-n",))),
        lambda engine: engine.run(query(orders=("-n",), limit=20)),
    ],
    ids=["found", "put", "equal", "range", "both", "order"],
)
def test_a_small_result(sizes: tuple[Subject, Subject], act: Callable[[Subject], object]) -> None:
    small, large = (steps(engine, act) for engine in sizes)
    assert large <= 1.5 * small


@pytest.mark.parametrize(
    "message",
    [
        query("K", (("a", "=", 1),), ("c",), limit=5),
        query("K", (("a", "=", 1), ("b", "=", 2)), limit=5),
        query(orders=("a", "-b", "c"), limit=5),
        query("K", (("a", "=", 1), ("c", ">", 2)), limit=5),
        query("K", (("b", "in", [1, 2]),), ("c",), limit=5),
        query("K", (("c", "!=", 5),), ("c", "a"), limit=5),
        query(projection=("c", "a"), limit=5),
    ],
)
def test_a_page_of_many_matches(
    sizes: tuple[Subject, Subject], message: QueryPb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the entities and index entries that are read."""
    # As if the large kind were really large.
    monkeypatch.setattr(query_runner, "FEW", 100)
    monkeypatch.setattr(access, "FEW", 100)
    read: list[object] = []
    get, scan = Reader.get, Reader.scan_index

    def counted_scan(self: Reader, *args: Any, **kwargs: Any) -> Iterator[Any]:
        for entry in scan(self, *args, **kwargs):
            read.append(entry)
            yield entry

    def counted_get(*args: Any) -> Any:
        read.append(args)
        return get(*args)

    monkeypatch.setattr(Reader, "get", counted_get)
    monkeypatch.setattr(Reader, "scan_index", counted_scan)
    cost = []
    for engine in sizes:
        read.clear()
        assert len(engine.run(message).entity_results) == 5
        cost.append(len(read))
    assert cost[1] <= 2 * cost[0]


@pytest.mark.parametrize(
    ("filters", "orders"),
    [
        ((), ("-__key__",)),
        ((("all", "=", 1),), ()),
        ((), ("a", "c")),
        ((("all", "=", 1),), ("-a", "b")),
        ((("__key__", ">", key("K", 900)),), ()),
    ],
)
def test_the_last_page(
    sizes: tuple[Subject, Subject], filters: Conditions, orders: tuple[str, ...]
) -> None:
    engine = sizes[1]
    message, last = query("K", filters, orders, limit=10), b""
    everything = query("K", filters, orders, limit=50)
    while True:
        batch = engine.run(everything)
        if batch.more_results != QueryResultBatch.MORE_RESULTS_AFTER_LIMIT:
            break
        everything.start_cursor = last = batch.end_cursor
    first = steps(engine, lambda engine: engine.run(message))
    message.start_cursor = last
    assert steps(engine, lambda engine: engine.run(message)) <= 2 * first + 500
