"""Faults: the matching requests, the effects, and the end of a fault."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.subject import Subject, query
from tests.unit.emulator.waiting import Started
from userlock_emulator.datastore import protos
from userlock_emulator.datastore.engine import Engine
from userlock_emulator.datastore.errors import CONTENTION, Code, DatastoreError
from userlock_emulator.datastore.faults import RPCS, Fault, Faults, Rule, kinds_in
from userlock_emulator.datastore.protos import CommitRequest, LookupRequest, Message, Mutation
from userlock_emulator.datastore.rpcs import rpcs

Run = Callable[[Message], Message]


def commit_of(*kinds: str) -> Message:
    mutations = [Mutation(upsert=entity(key(kind, 1))) for kind in kinds]
    return CommitRequest(
        project_id=PROJECT, mode=CommitRequest.NON_TRANSACTIONAL, mutations=mutations
    )


class Service:
    """An RPC that records its executions."""

    def __init__(self) -> None:
        self.done: list[Message] = []
        self.rolled_back: list[Message] = []
        self.faults = Faults(self.rolled_back.append)

    def call(self, request: Message, rpc: str = "Commit") -> Message:
        def run(request: Message) -> Message:
            self.done.append(request)
            return "reply"

        return self.faults.around(rpc, run)(request)

    def code_of(self, request: Message, rpc: str = "Commit") -> Code | None:
        """Return the error code of a call; None: a normal reply."""
        try:
            assert self.call(request, rpc) == "reply"
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
    assert service.code_of(commit_of("K")) is code
    assert len(service.done) == applied
    assert fault.hits == 1
    assert not service.faults.planted
    assert service.code_of(commit_of("K")) is None, "it is spent"


def test_nothing_planted_nothing_happens(service: Service) -> None:
    assert service.code_of(commit_of("K")) is None
    assert len(service.done) == 1


def test_a_count(service: Service) -> None:
    service.faults.abort(2)
    codes = [service.code_of(commit_of("K")) for _ in range(3)]
    assert codes == [Code.ABORTED, Code.ABORTED, None]


def test_until_it_is_removed(service: Service) -> None:
    with service.faults.unavailable(None) as fault:
        assert [service.code_of(commit_of("K")) for _ in range(3)] == [Code.UNAVAILABLE] * 3
        assert list(service.faults.planted) == [fault]
    assert service.code_of(commit_of("K")) is None
    assert not service.faults.planted


def test_some_are_let_through_before(service: Service) -> None:
    service.faults.abort(skip=2)
    codes = [service.code_of(commit_of("K")) for _ in range(4)]
    assert codes == [None, None, Code.ABORTED, None]


def test_for_one_kind(service: Service) -> None:
    service.faults.abort(kind="Learner")
    assert service.code_of(commit_of("K")) is None
    assert service.code_of(commit_of("K", "Learner")) is Code.ABORTED


def test_for_one_rpc(service: Service) -> None:
    service.faults.unavailable(rpc="Lookup")
    assert service.code_of(commit_of("K")) is None
    assert service.code_of(LookupRequest(), "Lookup") is Code.UNAVAILABLE


@pytest.mark.parametrize("plant", [Faults.abort, Faults.drop_reply, Faults.hold])
def test_some_are_for_commits_by_default(service: Service, plant: Callable[..., Fault]) -> None:
    with plant(service.faults) as fault:
        assert fault.rule.rpc == "Commit"
    with plant(service.faults, rpc=None) as fault:
        assert fault.rule.rpc is None


def test_a_request_meets_the_first_that_matches(service: Service) -> None:
    service.faults.abort(kind="Learner")
    service.faults.unavailable()
    service.faults.deadline_exceeded()
    codes = [service.code_of(commit_of("K")) for _ in range(2)]
    assert codes == [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED]


def test_all_can_be_removed(service: Service) -> None:
    service.faults.abort(None)
    service.faults.unavailable(None)
    service.faults.clear()
    assert service.code_of(commit_of("K")) is None


class TestDelays:
    def test_a_held_request_goes_on_when_the_fault_is_removed(self, service: Service) -> None:
        with service.faults.hold() as held:
            call = Started(lambda: service.call(commit_of("K")))
            held.wait()
            assert not service.done
            assert not call.done
            assert service.code_of(commit_of("K")) is None, "others pass"
        assert call.result() == "reply"
        assert len(service.done) == 2

    def test_so_it_does_when_all_are_cleared(self, service: Service) -> None:
        held = service.faults.hold()
        call = Started(lambda: service.call(commit_of("K")))
        held.wait()
        service.faults.clear()
        assert call.result() == "reply"
        assert not service.faults.planted

    def test_a_held_reply(self, service: Service) -> None:
        carried_out = threading.Event()

        def run(request: Message) -> Message:
            carried_out.set()
            return "reply"

        with service.faults.hold(applied=True):
            call = Started(lambda: service.faults.around("Commit", run)(commit_of("K")))
            assert carried_out.wait(10)
            assert not call.done
        assert call.result() == "reply"

    def test_a_delay_ends_by_itself(self, service: Service) -> None:
        service.faults.delay(0.01)
        assert service.call(commit_of("K")) == "reply"

    def test_a_wait_that_times_out_raises(self, service: Service) -> None:
        fault = service.faults.hold()
        with pytest.raises(TimeoutError, match="was met 0 of 1 times"):
            fault.wait(timeout_seconds=0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rpc": "commit"}, "there is no RPC 'commit'; there are: Lookup"),
        ({"count": 0}, "at least 1"),
        ({"skip": -1}, "skipped"),
        ({"seconds": -1}, "delayed by -1"),
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
        return sum(service.code_of(commit_of("K")) is Code.ABORTED for _ in range(25))

    calls = [Started(work) for _ in range(8)]
    assert sum(call.result() for call in calls) == fault.hits == 50


class TestKinds:
    @pytest.mark.parametrize(
        ("rpc", "request_", "kinds"),
        [
            ("Lookup", protos.LookupRequest(keys=[key("A", 1), key("A", 1, "B", 2)]), {"A", "B"}),
            ("Commit", CommitRequest(mutations=[Mutation(delete=key("A", 1))]), {"A"}),
            ("Commit", CommitRequest(mutations=[Mutation(insert=entity(key("A")))]), {"A"}),
            ("Commit", CommitRequest(mutations=[Mutation()]), {""}),
            ("Commit", CommitRequest(), set()),
            ("RunQuery", protos.RunQueryRequest(query=query("A")), {"A"}),
            ("RunQuery", protos.RunQueryRequest(), set()),
            ("AllocateIds", protos.AllocateIdsRequest(keys=[key("A")]), {"A"}),
            ("ReserveIds", protos.ReserveIdsRequest(keys=[key("A", 1)]), {"A"}),
            ("BeginTransaction", protos.BeginTransactionRequest(), set()),
            ("Rollback", protos.RollbackRequest(), set()),
        ],
    )
    def test_the_kinds_of_a_request(self, rpc: str, request_: Message, kinds: set[str]) -> None:
        assert kinds_in(rpc, request_) == kinds

    @pytest.mark.parametrize(
        ("rpc", "text", "kinds"),
        [
            ("RunQuery", "SELECT * FROM A WHERE n = @1", {"A"}),
            ("RunQuery", "SELECT *", set()),
            ("RunQuery", "what", set()),
            ("RunAggregationQuery", "SELECT COUNT(*) FROM A WHERE n = @1", {"A"}),
        ],
    )
    def test_of_gql(self, rpc: str, text: str, kinds: set[str]) -> None:
        gql = protos.GqlQuery(query_string=text)
        if "@1" in text:
            gql.positional_bindings.add().value.integer_value = 1
        request = getattr(protos, f"{rpc}Request")(project_id="p", gql_query=gql)
        assert kinds_in(rpc, request) == kinds

    def test_of_an_aggregation(self) -> None:
        request = protos.RunAggregationQueryRequest()
        request.aggregation_query.nested_query.CopyFrom(query("A"))
        assert kinds_in("RunAggregationQuery", request) == {"A"}

    def test_every_rpc_is_known(self, engine: Subject) -> None:
        assert set(rpcs(engine.engine, Faults(engine.engine.rollback))) == set(RPCS)


class TestTransactions:
    def begun(self, engine: Subject) -> tuple[Engine, Faults, bytes]:
        return engine.engine, Faults(engine.engine.rollback), engine.begin()

    def test_an_aborted_commit_ends_its_transaction(self, engine: Subject) -> None:
        running, faults, transaction = self.begun(engine)
        faults.abort()
        request = CommitRequest(project_id=PROJECT, transaction=transaction)
        with pytest.raises(DatastoreError, match=CONTENTION):
            faults.around("Commit", running.commit)(request)
        with pytest.raises(DatastoreError, match="no longer valid"):
            faults.around("Commit", running.commit)(request)
        engine.rollback(transaction)

    def test_so_does_an_aborted_read(self, engine: Subject) -> None:
        running, faults, transaction = self.begun(engine)
        faults.abort(rpc="Lookup")
        request = LookupRequest(project_id=PROJECT, keys=[key("K", 1)])
        request.read_options.transaction = transaction
        with pytest.raises(DatastoreError, match=CONTENTION):
            faults.around("Lookup", running.lookup)(request)
        with pytest.raises(DatastoreError, match="no longer valid"):
            engine.lookup(key("K", 1), transaction=transaction)

    def test_after_another_fault_it_goes_on(self, engine: Subject) -> None:
        """The control: only an abort by Datastore itself ends the transaction."""
        running, faults, transaction = self.begun(engine)
        faults.unavailable()
        request = CommitRequest(project_id=PROJECT, transaction=transaction)
        commit = faults.around("Commit", running.commit)
        with pytest.raises(DatastoreError, match="currently unavailable"):
            commit(request)
        assert commit(request).HasField("commit_time")

    def test_an_unknown_transaction_is_for_the_client_to_learn_of(self, engine: Subject) -> None:
        running, faults, _ = self.begun(engine)
        faults.abort()
        request = CommitRequest(project_id=PROJECT, transaction=b"what")
        with pytest.raises(DatastoreError, match=CONTENTION):
            faults.around("Commit", running.commit)(request)
