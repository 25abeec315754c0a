"""Requests with errors are refused properly, whatever the error is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.emulator.builders import PROJECT, GeoPoint, Timestamp, entity, key
from tests.unit.emulator.subject import Subject, query, subject, where
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.protos import (
    AllocateIdsRequest,
    BeginTransactionRequest,
    CommitRequest,
    LookupRequest,
    Message,
    Mutation,
    ReserveIdsRequest,
    RollbackRequest,
    RunAggregationQueryRequest,
    RunQueryRequest,
)
from userlock_emulator.datastore.transfer import Transfer

KEY = key("K", 1, "L", "x")
EVERYTHING = entity(
    KEY,
    a=1,
    b="x",
    c=[1, "a", None, 2.5],
    d={"e": 1, "f": {"g": key("Z", 1)}},
    at=Timestamp(5),
    where=GeoPoint((1.0, 2.0)),
    blob=b"ab",
    other=key("K", 1),
    yes=True,
)


def mutations() -> Iterator[Message]:
    yield Mutation(upsert=EVERYTHING)
    yield Mutation(insert=entity(key("K"), at=Timestamp(5)))
    yield Mutation(delete=KEY, base_version=5)
    partly = Mutation(update=EVERYTHING)
    partly.property_mask.paths.extend(["a", "d.e"])
    partly.property_transforms.add(property="a").increment.integer_value = 1
    partly.property_transforms.add(property="at").set_to_server_value = 1
    partly.property_transforms.add(property="c").append_missing_elements.values.add(integer_value=7)
    yield partly


def queries(cursor: bytes) -> Iterator[Message]:
    yield query(
        "L",
        where(
            ("a", ">", 0), ("b", "in", ["x", "y"]), ("c", "!=", 2), ("__key__", "<", key("L", 9))
        ),
        orders=("a", "-b"),
        limit=5,
        offset=1,
    )
    yield query("L", projection=("a", "c"), distinct_on=[{"name": "a"}])
    yield query("L", start_cursor=cursor)
    yield query(None, where(("__key__", "ancestor", key("K", 1))))
    yield query("__property__")


def requests(engine: Subject) -> Iterator[tuple[str, Message]]:
    """Yield a valid request for each RPC, with its name."""
    transaction = engine.begin()
    for mutation in mutations():
        yield "commit", CommitRequest(mode=CommitRequest.NON_TRANSACTIONAL, mutations=[mutation])
        yield "commit", CommitRequest(transaction=transaction, mutations=[mutation])
    for each in queries(engine.run(query("L", limit=1)).end_cursor):
        yield "run_query", RunQueryRequest(query=each, explain_options={"analyze": True})
        yield "run_query", RunQueryRequest(query=each, read_options={"transaction": transaction})
        summed = RunAggregationQueryRequest(aggregation_query={"nested_query": each})
        summed.aggregation_query.aggregations.add(alias="s").sum.property.name = "a"
        summed.aggregation_query.aggregations.add().count.up_to.value = 3
        yield "run_aggregation_query", summed
    spoken = RunQueryRequest()
    spoken.gql_query.query_string = "SELECT a FROM L WHERE b > @1 AND a = 2 ORDER BY a LIMIT 3"
    spoken.gql_query.allow_literals = True
    spoken.gql_query.positional_bindings.add().value.string_value = "x"
    yield "run_query", spoken
    yield "lookup", LookupRequest(keys=[KEY, key("K", 2)], property_mask={"paths": ["d.f"]})
    yield "allocate_ids", AllocateIdsRequest(keys=[key("K"), key("K", 1, "L")])
    yield "reserve_ids", ReserveIdsRequest(keys=[KEY])
    yield "rollback", RollbackRequest(transaction=transaction)
    begin = BeginTransactionRequest()
    begin.transaction_options.read_only.read_time.FromMicroseconds(engine.storage.clock.now())
    yield "begin_transaction", begin


# The position, as a share of the whole; the number of removed bytes; and the inserted bytes.
edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.integers(0, 1),
        st.binary(max_size=1) | st.sampled_from([b"\xff" * 9 + b"\x01", b"\x80", b"\x00"]),
    ),
    max_size=4,
)


def spoilt(message: Message, changes: list[tuple[float, int, bytes]]) -> Message | None:
    """Return the message with some of its bytes changed; None if the result cannot be parsed."""
    data = bytearray(message.SerializeToString())
    for place, out, into in changes:
        at = int(place * len(data))
        data[at : at + out] = into
    try:
        return type(message).FromString(bytes(data))
    except DecodeError:
        return None


def dated(seconds: int) -> Any:
    """Return a commit that the service could not read back."""
    stored = entity(KEY)
    stored.properties["at"].timestamp_value.seconds = seconds
    return "commit", CommitRequest(
        mode=CommitRequest.NON_TRANSACTIONAL, mutations=[Mutation(upsert=stored)]
    )


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 99), edits)
@example(dated(2**62), [])
@example(dated(253_402_300_800), [])
def test_invalid_requests_are_errors_of_the_client(
    chosen: Any, changes: list[tuple[float, int, bytes]]
) -> None:
    """Any exception except DatastoreError would be the emulator's fault, and ends the test."""
    with subject() as engine:
        engine.put(EVERYTHING)
        good = list(requests(engine))
        rpc, message = good[chosen % len(good)] if isinstance(chosen, int) else chosen
        message.project_id = PROJECT
        request = spoilt(message, changes)
        if request is None:
            return
        with contextlib.suppress(DatastoreError):
            getattr(engine.engine, rpc)(request).SerializeToString()
        # Entities that it has stored can be read.
        list(Transfer(engine.storage, engine.engine.commit).lines())
