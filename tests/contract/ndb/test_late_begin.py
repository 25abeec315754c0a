"""A transaction begins with its first RPC: what is sent, and what becomes of lost answers."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions as google_errors
from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as datastore_types

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.ndb import servers
from tests.contract.ndb.models import Learner, Plain
from tests.contract.ndb.servers import READS, Wire
from userlock.ndb import calls
from userlock.ndb.transactions import undisguised
from userlock_emulator import Emulator

pytestmark = [pytest.mark.usefixtures("context", "quick_retries"), EACH_MODE]


@pytest.fixture(autouse=True)
def _stored(context: Any) -> None:
    with userlock.global_locks(["ann", "bob"]):
        ndb.put_multi([Learner(id="ann"), Learner(id="bob"), Plain(id="ann", number=1)])
    context.clear_cache()


def add() -> None:
    learner = Learner.get_by_id("ann")
    learner.points += 1
    learner.put()


def add_plainly() -> None:
    plain = Plain.get_by_id("ann")
    plain.number += 1
    plain.put()


def put_plainly() -> None:
    Plain(id="new", number=1).put()


def look_ups() -> None:
    """Make several RPCs at the same time: each has options of its own."""
    futures = [
        Plain.get_by_id_async("ann"),
        Plain.get_by_id_async("bob", timeout=9),
        Learner.get_by_id_async("bob", timeout=8),
    ]
    for future in futures:
        future.result()
    add_plainly()


def below() -> Any:
    return Learner.query(ancestor=ndb.Key(Learner, "ann"))


def number() -> int:
    return int(Plain.get_by_id("ann", use_cache=False).number)


def ids_of(wire: Wire) -> set[bytes]:
    """Return the ids of transactions that were sent."""
    named = [
        request.read_options.transaction if name in READS else request.transaction
        for name, request in wire.rpcs
        if name != "begin_transaction"
    ]
    return {each for each in named if each}


# --- what is sent -------------------------------------------------------------------------------

SENT: dict[str, tuple[Callable[[], object], list[str]]] = {
    "get and put": (add, ["lookup", "commit"]),
    "get and put, a plain model": (add_plainly, ["lookup", "commit"]),
    "a put alone": (put_plainly, ["begin_transaction", "commit"]),
    "a query": (lambda: below().fetch(), ["run_query", "commit"]),
    "a count": (lambda: below().count(), ["run_query", "commit"]),
    "nothing": (lambda: None, ["begin_transaction", "commit"]),
    "look-ups at the same time": (look_ups, ["lookup"] * 3 + ["commit"]),
}


@pytest.mark.parametrize("work", SENT)
@pytest.mark.parametrize("read_only", [False, True], ids=["", "read only"])
def test_what_is_sent(wire: Wire, work: str, read_only: bool) -> None:
    function, sent = SENT[work]
    writes = function in (add, add_plainly, put_plainly, look_ups)
    refused = pytest.raises(google_errors.InvalidArgument)
    with userlock.global_lock("ann"), refused if read_only and writes else contextlib.nullcontext():
        ndb.transaction(function, read_only=read_only)
    if not (read_only and writes):
        assert wire.names == sent
    assert wire.begun == 1
    assert len(ids_of(wire)) == 1, "all that came later is in that transaction"
    (first, request), *_ = wire.rpcs
    options = (
        request.transaction_options
        if first == "begin_transaction"
        else request.read_options.new_transaction
    )
    assert ("read_only" in options, "read_write" in options) == (read_only, not read_only)


def test_an_error_before_the_first_rpc_sends_nothing(wire: Wire) -> None:
    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError):
        ndb.transaction(fail)
    assert wire.names == []


@pytest.mark.parametrize("waits", [True, False], ids=["after the answer", "before it"])
def test_an_error_rolls_back(wire: Wire, waits: bool, datastore: Emulator) -> None:
    """Also a transaction that a read under way begins: nobody else has to wait for its locks."""

    def fail() -> None:
        future = Plain.get_by_id_async("ann")
        ndb.context.get_context().eventloop.run_idle()
        if waits:
            future.result()
        raise KeyError("mine")

    with pytest.raises(KeyError):
        ndb.transaction(fail)
    assert wire.names == ["lookup", "rollback"]
    assert len(ids_of(wire)) == 1
    Plain(id="ann", number=7).put()  # would wait for the lock of a read


def test_those_of_an_application_are_as_they_were(ndb_client: ndb.Client, wire: Wire) -> None:
    stub = ndb_client.stub
    begin = datastore_types.BeginTransactionRequest(project_id=ndb_client.project)
    begun = stub.begin_transaction(begin).transaction
    options = datastore_types.ReadOptions(transaction=begun)
    key = Plain(id="ann").key._key.to_protobuf()
    asked = {"project_id": ndb_client.project, "keys": [key], "read_options": options}
    assert stub.lookup(datastore_types.LookupRequest(**asked)).found
    end = {"project_id": ndb_client.project, "transaction": begun}
    stub.rollback(datastore_types.RollbackRequest(**end))
    assert wire.names == ["begin_transaction", "lookup", "rollback"]
    assert ids_of(wire) == {begun}


def test_transactions_without_reads_go_side_by_side(wire: Wire) -> None:
    @ndb.tasklet
    def all_at_once() -> Any:
        yield [
            ndb.transaction_async(lambda name=name: Plain(id=name, number=1).put())
            for name in ("c", "d", "e")
        ]

    all_at_once().result()
    assert sorted(wire.names) == ["begin_transaction"] * 3 + ["commit"] * 3
    assert len(ids_of(wire)) == 3


def test_it_is_serialisable_from_its_first_read_on(
    elsewhere: Callable[[Callable[[], None]], None], datastore: Emulator
) -> None:
    """It reads the writes of others before that; the function runs once."""
    runs = []

    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            elsewhere(lambda: Plain(id="ann", number=10).put() and None)
        add_plainly()

    ndb.transaction(work)
    assert (len(runs), number()) == (1, 11)


# --- lost answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [False, True], ids=["the request", "the answer"])
def test_the_first_read_is_lost(datastore: Emulator, wire: Wire, applied: bool) -> None:
    """It is sent again, and begins another transaction; the commit is of that one.

    Where the answer was lost, the read has locks until its transaction ends by itself. So the
    entity that is written here is another one.
    """

    def work() -> None:
        runs.append(1)
        Learner.get_by_id("bob")
        put_plainly()

    runs: list[int] = []
    if applied:
        datastore.faults.drop_reply(rpc="Lookup")
    else:
        datastore.faults.unavailable(rpc="Lookup")
    ndb.transaction(work)
    assert runs == [1]
    assert wire.names == ["lookup", "lookup", "commit"]
    assert (wire.begun, len(ids_of(wire))) == (2, 1)


@pytest.mark.parametrize("told", ["later", "between"])
def test_an_answer_that_comes_before_grpc_tells_it(
    wire: Wire, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its callbacks are called in another thread, a moment later: perhaps between the look whether
    the transaction has begun and the wait for that."""
    add = servers._Future.add_done_callback
    late: list[Callable[[Any], None]] = []

    def add_later(call: Any, callback: Callable[[Any], None]) -> None:
        if getattr(callback, "__name__", "") == "answered" and not late:
            late.append(callback)
        else:
            add(call, callback)

    begin = calls._Transaction.begin

    def begin_after_the_answer(transaction: Any, *args: Any) -> Any:
        late[0](transaction.call)
        return begin(transaction, *args)

    monkeypatch.setattr(servers._Future, "add_done_callback", add_later)
    if told == "between":
        monkeypatch.setattr(calls._Transaction, "begin", begin_after_the_answer)
    ndb.transaction(look_ups)
    assert number() == 2
    assert "begin_transaction" not in wire.names


@pytest.mark.parametrize("work", [put_plainly, lambda: Learner(id="new").put()])
@pytest.mark.parametrize("reaction", ["noted", "the control"])
def test_it_cannot_begin(
    datastore: Emulator,
    wire: Wire,
    work: Callable[[], None],
    reaction: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No commit was sent, so nothing is in doubt."""
    if reaction == "the control":
        monkeypatch.setattr(calls, "note_unsent", lambda error: None)
    datastore.faults.unavailable(None, rpc="BeginTransaction")
    in_doubt = work is not put_plainly and reaction == "the control"
    expected = userlock.CommitInDoubt if in_doubt else google_errors.GoogleAPIError
    with pytest.raises(expected), userlock.global_lock("new"):
        ndb.transaction(work)
    assert "commit" not in wire.names


def test_it_begins_at_the_second_time(datastore: Emulator, wire: Wire) -> None:
    datastore.faults.unavailable(1, rpc="BeginTransaction")
    ndb.transaction(put_plainly)
    assert Plain.get_by_id("new", use_cache=False).number == 1


def test_a_commit_without_reads_is_applied_once(datastore: Emulator, wire: Wire) -> None:
    """It is sent again in the same transaction, which is the reason for BeginTransaction."""
    datastore.faults.drop_reply(rpc="Commit")
    with userlock.global_lock("new"), contextlib.suppress(userlock.CommitInDoubt):
        ndb.transaction(lambda: Learner(id="new").put())
    assert wire.names.count("begin_transaction") == 1
    assert wire.names.count("commit") > 1
    assert len(ids_of(wire)) == 1


# --- others than Datastore ----------------------------------------------------------------------


class WithoutIds(Wire):
    """A server that knows nothing of `new_transaction`."""

    def sent(self, name: str, request: Any) -> Any:
        request = super().sent(name, request)
        if name in ("lookup", "run_query"):
            request = type(request)(request)
            del request.read_options
        return request


def test_a_read_without_a_transaction_is_refused(ndb_client: ndb.Client) -> None:
    WithoutIds(ndb_client)
    with pytest.raises(Exception, match="without an id"):
        ndb.transaction(add_plainly)
    assert number() == 1


def test_nothing_is_read_after_the_end(ndb_client: ndb.Client, wire: Wire) -> None:
    """It would begin a transaction that nobody ends."""
    late: list[Any] = []

    def fail() -> None:
        late.append(ndb.context.get_context())
        raise KeyError("mine")

    with pytest.raises(KeyError):
        ndb.transaction(fail)
    with late[0].use(), pytest.raises(ndb.exceptions.NestedRetryException) as caught:
        Plain.get_by_id("ann")
    assert isinstance(undisguised(caught.value), google_errors.InvalidArgument)
    assert wire.names == []


def test_nothing_is_kept_of_one_that_is_over() -> None:
    kept: list[weakref.ref[Any]] = []

    def noted() -> None:
        add_plainly()
        late = ndb.context.get_context().transaction
        kept.append(weakref.ref(late.transaction))

    for _ in range(5):
        ndb.transaction(noted)
    gc.collect()
    assert [each() for each in kept[:-1]] == [None] * 4, "the last one may be in use"
