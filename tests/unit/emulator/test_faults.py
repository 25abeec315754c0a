"""Faults: the matching requests, the effects, and the end of a fault."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.subject import Subject, query
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator.datastore import protos
from userlock_emulator.datastore.errors import CONTENTION, Code, DatastoreError
from userlock_emulator.datastore.faults import RPCS, Fault, Faults, Rule, kinds_in
from userlock_emulator.datastore.protos import CommitRequest, LookupRequest, Message, Mutation
from userlock_emulator.datastore.rpcs import rpcs


def commit_of(*kinds: str) -> Message:
    mutations = [Mutation(upsert=entity(key(kind, 1))) for kind in kinds]
    return CommitRequest(
        project_id=PROJECT, mode=CommitRequest.NON_TRANSACTIONAL, mutations=mutations
    )


class Service:
    def __init__(self) -> None:
        self.done: list[Message] = []
        self.faults = Faults(lambda transaction: None)

    def call(self, request: Message, rpc: str = "Commit") -> Message:
        def run(request: Message) -> Message:
            self.done.append(request)
            return "reply"

        return self.faults.around(rpc, run)(request)

    def code_of(self, *kinds: str, rpc: str = "Commit") -> Code | None:
        """Return the error code of a call; None: a normal reply."""
        try:
            assert self.call(commit_of(*kinds), rpc) == "reply"
        except DatastoreError as error:
            return error.code
        return None


@pytest.fixture
def service() -> Service:
    return Service()


PLANTERS: list[tuple[Callable[[Faults], Fault], Code | None, bool]] = [
    (lambda faults: faults.abort(), Code.ABORTED, False),
    (lambda faults: faults.unavailable(), Code.UNAVAILABLE, False),
    (lambda faults: faults.deadline_exceeded(), Code.DEADLINE_EXCEEDED, False),
    (lambda faults: faults.deadline_exceeded(applied=True), Code.DEADLINE_EXCEEDED, True),
    (lambda faults: faults.drop_reply(), Code.UNAVAILABLE, True),
    (lambda faults: faults.delay(0), None, True),
    (lambda faults: faults.delay(0, applied=True), None, True),
]


@pytest.mark.parametrize(("plant", "code", "applied"), PLANTERS)
def test_how_it_ends_and_whether_it_is_applied(
    service: Service, plant: Callable[[Faults], Fault], code: Code | None, applied: bool
) -> None:
    fault = plant(service.faults)
    assert service.code_of("K") is code
    assert len(service.done) == applied
    assert fault.hits == 1
    assert not service.faults.planted
    assert service.code_of("K") is None, "it is spent"


@pytest.mark.parametrize(
    ("plant", "codes"),
    [
        (lambda faults: faults.abort(2), [Code.ABORTED, Code.ABORTED, None]),
        (lambda faults: faults.abort(skip=1), [None, Code.ABORTED, None]),
        (lambda faults: faults.abort(None), [Code.ABORTED] * 3),
        (lambda faults: faults.abort(kind="K"), [Code.ABORTED, None, None]),
        (lambda faults: faults.abort(kind="L"), [None] * 3),
        (lambda faults: faults.unavailable(rpc="Lookup"), [None] * 3),
        (
            lambda faults: [faults.abort(kind="L"), faults.unavailable(), faults.abort()],
            [Code.UNAVAILABLE, Code.ABORTED, None],
        ),
        (lambda faults: [faults.abort(None), faults.clear()], [None] * 3),
    ],
)
def test_the_requests_that_meet_it(
    service: Service, plant: Callable[[Faults], object], codes: list[Code | None]
) -> None:
    plant(service.faults)
    assert [service.code_of("K", "M") for _ in range(3)] == codes


def test_commits_and_other_rpcs(service: Service) -> None:
    for plant in (service.faults.abort, service.faults.drop_reply, service.faults.hold):
        with plant():
            assert service.code_of("K", rpc="Lookup") is None, "it is for commits"
    with service.faults.abort(rpc=None), service.faults.unavailable(rpc="Lookup"):
        assert service.code_of("K", rpc="Lookup") is Code.ABORTED
        assert service.code_of("K", rpc="Lookup") is Code.UNAVAILABLE


@pytest.mark.parametrize(("applied", "end"), [(False, "remove"), (True, "clear")])
def test_a_held_request_goes_on_when_the_fault_is_removed(
    service: Service, applied: bool, end: str
) -> None:
    held = service.faults.hold(applied=applied)
    call = Started(lambda: service.call(commit_of("K")))
    held.wait()
    assert service.code_of("K") is None, "others pass"
    if applied:
        wait_until(lambda: len(service.done) == 2)
    assert len(service.done) == 1 + applied
    assert not call.done
    held.remove() if end == "remove" else service.faults.clear()
    assert call.result() == "reply"
    assert len(service.done) == 2


def test_a_wait_that_times_out_raises(service: Service) -> None:
    with pytest.raises(TimeoutError, match="was met 0 of 1 times"):
        service.faults.hold().wait(timeout_seconds=0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rpc": "commit"}, "there is no RPC 'commit'; there are: Lookup"),
        ({"count": 0}, "at least 1"),
        ({"skip": -1}, "skipped"),
        ({"seconds": float("nan")}, "delayed by nan"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Rule(name="wrong", **wrong)


def test_many_threads_meet_it_no_more_often_than_it_counts(service: Service) -> None:
    fault = service.faults.abort(50)
    together = threading.Barrier(8)

    def work() -> int:
        together.wait(10)
        return sum(service.code_of("K") is Code.ABORTED for _ in range(25))

    calls = [Started(work) for _ in range(8)]
    assert sum(call.result() for call in calls) == fault.hits == 50


@pytest.mark.parametrize(
    ("rpc", "fields", "kinds"),
    [
        ("Lookup", {"keys": [key("A", 1), key("A", 1, "B", 2)]}, {"A", "B"}),
        ("Commit", {"mutations": [Mutation(delete=key("A", 1))]}, {"A"}),
        ("Commit", {"mutations": [Mutation()]}, {""}),
        ("RunQuery", {"query": query("A")}, {"A"}),
        ("RunQuery", {"gql_query": {"query_string": "SELECT * FROM A"}}, {"A"}),
        ("RunQuery", {"gql_query": {"query_string": "what"}}, set()),
        ("RunAggregationQuery", {"gql_query": {"query_string": "SELECT COUNT(*) FROM A"}}, {"A"}),
        ("RunAggregationQuery", {"aggregation_query": {"nested_query": query("A")}}, {"A"}),
        ("AllocateIds", {"keys": [key("A")]}, {"A"}),
        ("ReserveIds", {"keys": [key("A", 1)]}, {"A"}),
        ("BeginTransaction", {}, set()),
    ],
)
def test_the_kinds_of_a_request(rpc: str, fields: dict[str, Any], kinds: set[str]) -> None:
    request = getattr(protos, f"{rpc}Request")(project_id="p", **fields)
    assert kinds_in(rpc, request) == kinds


def test_every_rpc_is_known(engine: Subject) -> None:
    assert set(rpcs(engine.engine, Faults(engine.engine.rollback))) == set(RPCS)


def test_an_abort_ends_the_transaction_and_no_other_fault_does(engine: Subject) -> None:
    running, faults, transaction = engine.engine, Faults(engine.engine.rollback), engine.begin()
    request = CommitRequest(project_id=PROJECT, transaction=transaction)
    commit = faults.around("Commit", running.commit)
    faults.unavailable()
    with pytest.raises(DatastoreError, match="currently unavailable"):
        commit(request)
    faults.abort(rpc="Lookup")
    read = LookupRequest(project_id=PROJECT, keys=[key("K", 1)])
    read.read_options.transaction = transaction
    with pytest.raises(DatastoreError, match=CONTENTION):
        faults.around("Lookup", running.lookup)(read)
    with pytest.raises(DatastoreError, match="no longer valid"):
        commit(request)
    engine.rollback(transaction)
    faults.abort()
    with pytest.raises(DatastoreError, match=CONTENTION):  # an unknown one, too
        commit(CommitRequest(project_id=PROJECT, transaction=b"what"))
