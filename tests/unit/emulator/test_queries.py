"""The meaning of queries: the documented rules, one by one."""

import pytest

from tests.unit.emulator.builders import entity, key, value
from tests.unit.emulator.subject import Subject, query, refused, where
from userlock_emulator.datastore.protos import EntityResult, Mutation, QueryPb, QueryResultBatch


@pytest.fixture
def numbers(engine: Subject) -> Subject:
    engine.put(
        *(entity(key("K", i), n=10 * i, parity="odd" if i % 2 else "even") for i in range(1, 7))
    )
    return engine


def test_properties_of_embedded_entities_have_dotted_names(engine: Subject) -> None:
    engine.put(
        entity(key("K", 1), address={"city": "Rome"}),
        entity(key("K", 2), **{"address.city": "Rome"}),
        entity(key("K", 3), address=[{"city": "Oslo"}, {"city": "Rome"}]),
        entity(key("K", 4), address=value({"city": "Rome"}, indexed=False)),
    )
    assert engine.identifiers(query(filters=where(("address.city", "=", "Rome")))) == [1, 2, 3]


def test_namespaces_are_kept_apart(engine: Subject) -> None:
    engine.put(entity(key("K", 1), n=1), entity(key("K", 2, namespace="other"), n=1))
    everything = query(filters=where(("n", "=", 1)))
    assert engine.identifiers(everything) == [1]
    (found,) = engine.run(everything, namespace="other").entity_results
    assert found.entity.key == key("K", 2, namespace="other")
    assert not engine.run(everything, namespace="empty").entity_results


def test_what_results_carry(engine: Subject) -> None:
    committed = engine.put(entity(key("K", 1), n=1)).mutation_results[0]
    changed = engine.put(entity(key("K", 1), n=2)).mutation_results[0]
    result = engine.run(query()).entity_results[0]
    assert result.version == changed.version > committed.version
    assert result.create_time == committed.create_time
    assert result.update_time == changed.update_time != committed.update_time
    batch = engine.run(query(projection=("__key__",), limit=1))
    assert batch.entity_result_type == EntityResult.KEY_ONLY
    assert batch.entity_results[0].entity == entity(key("K", 1))
    assert batch.entity_results[0].cursor


def test_positions_in_the_results(numbers: Subject) -> None:
    batch = numbers.run(query(offset=2, limit=3))
    assert numbers.identifiers(query(start_cursor=batch.skipped_cursor)) == [3, 4, 5, 6]
    cursors = [each.cursor for each in numbers.run(query()).entity_results]
    middle = numbers.run(query(start_cursor=cursors[1], end_cursor=cursors[3]))
    assert [r.entity.key.path[0].id for r in middle.entity_results] == [3, 4]
    assert middle.more_results == QueryResultBatch.MORE_RESULTS_AFTER_CURSOR
    last = numbers.run(query(end_cursor=cursors[5]))
    assert last.more_results == QueryResultBatch.NO_MORE_RESULTS
    # Inserts and deletions do not move a cursor, nor does the order of alternatives.
    by_n = query(orders=("n",), limit=3)
    by_n.start_cursor = numbers.run(by_n).end_cursor
    numbers.put(entity(key("K", 100), n=5), entity(key("K", 101), n=35))
    numbers.delete(key("K", 3))
    assert numbers.identifiers(by_n) == [101, 4, 5]
    one, other = (query(filters=where(("n", "in", values))) for values in ([10, 40], [40, 10]))
    other.start_cursor = numbers.run(one).entity_results[0].cursor
    assert numbers.identifiers(other) == [4]
    empty = numbers.run(query("New", orders=("n",)))
    numbers.put(entity(key("New", 1), n=1))
    assert numbers.identifiers(query("New", orders=("n",), start_cursor=empty.end_cursor)) == [1]


@pytest.mark.parametrize(
    ("entities", "size", "sizes"), [(6, 1_000_000, [3, 3]), (700, 1, [300, 300, 50])]
)
def test_results_come_in_batches(
    engine: Subject, entities: int, size: int, sizes: list[int]
) -> None:
    """Below the clients' limit of 4 MiB, and of 300 results."""
    blob = value(b"x" * size, indexed=False)
    engine.commit(*(Mutation(upsert=entity(key("K", i + 1), b=blob)) for i in range(entities)))
    message = query(limit=sum(sizes), offset=20 if size == 1 else 0)
    found = []
    while True:
        batch = engine.run(message)
        assert batch.ByteSize() < 4 * 1024 * 1024
        found.append(len(batch.entity_results))
        if batch.more_results != QueryResultBatch.NOT_FINISHED:
            break
        message.start_cursor = batch.end_cursor
        message.offset = 0
        message.limit.value -= len(batch.entity_results)
    assert found == sizes


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            query(filters=where(*((f"p{number}", ">", 1) for number in range(11)))),
            "at most 10 range or inequality filters",
        ),
        (query(filters=where(("a", "in", list(range(6))), ("b", "in", list(range(6))))), "30"),
        (query(filters=where(("a", "not in", [1]), ("b", "in", [1]))), "with 'IN' or 'OR'"),
        (
            query(filters=where(("a", "not in", [1]), ("b", "=", 1), any_of=True)),
            "with 'IN' or 'OR'",
        ),
        (
            query(filters=where(("__key__", "ancestor", key("K", 1)), ("b", "=", 1), any_of=True)),
            "unique ancestor",
        ),
        (query(filters=where(("__key__", "=", key("K", 1, namespace="x")))), "namespace"),
    ],
)
def test_refused_queries(engine: Subject, message: QueryPb, text: str) -> None:
    """Beside those of `test_validation`."""
    with refused(text):
        engine.run(message)


def test_a_cursor_of_another_query_is_refused(numbers: Subject) -> None:
    cursor = numbers.run(query(limit=1)).end_cursor
    with refused("another query"):
        numbers.run(query(orders=("n",), start_cursor=cursor))
    with refused("not valid"):
        numbers.run(query(start_cursor=cursor[:-1]))
