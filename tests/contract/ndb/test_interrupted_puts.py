"""A wait for a put that ends by another error: of a signal, or of a callback that the wait runs.

The write stays known. The lock is left when it has landed.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from google.cloud import ndb
from google.cloud.ndb import _datastore_api, _eventloop, _remote, global_cache, tasklets

import userlock
from tests.contract.ndb.actions import Elsewhere, Overtake, add_five, stored_points
from tests.contract.ndb.models import Learner
from tests.contract.ndb.servers import Wire
from tests.interpreters import run_python
from tests.waiting import wait_until
from userlock.constraints import Unique
from userlock.ndb import calls, commits, pending, stub, transactions
from userlock_emulator import Emulator

pytestmark = pytest.mark.usefixtures("key", "quick_retries")


class Late(Exception):
    """A time limit, as a signal handler raises it."""


class Stopped(SystemExit):
    """As a server raises it that stops."""


class Titled(userlock.UserModel):
    _lock_id_from_key = userlock.root_id
    _overwrites = True
    _unique = [Unique("title")]  # noqa: RUF012
    title = ndb.StringProperty()


class Hooked(ndb.Model):
    def _post_put_hook(self, future: Any) -> None:
        raise Late


@pytest.fixture(params=[Late, Stopped])
def error(request: pytest.FixtureRequest) -> Iterator[type[BaseException]]:
    def handle(*_: object) -> None:
        raise request.param

    before = signal.signal(signal.SIGUSR1, handle)
    yield request.param
    signal.signal(signal.SIGUSR1, before)


def interrupted_after(owner: Any, name: str) -> Callable[[Any], None]:
    """Return what puts; the signal comes at the end of a function between ndb and gRPC."""

    def put(held: Any) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            kept.append(function(*args, **kwargs))  # gRPC cancels a call that nobody keeps
            held.wait()
            handler: Any = signal.getsignal(signal.SIGUSR1)
            handler()

        learner = Learner.get_by_id("ann")
        learner.points = 7
        with mock.patch.object(owner, name, call):
            learner.put()

    function = getattr(owner, name)
    kept: list[Any] = []
    return put


def interrupted_before(owner: Any, name: str) -> Callable[[Any], None]:
    """Return what puts; the signal comes at the beginning of a function that leads to the RPC."""

    def put(held: Any) -> None:
        learner = Learner.get_by_id("ann")
        learner.points = 7
        handler: Any = signal.getsignal(signal.SIGUSR1)
        with mock.patch.object(owner, name, side_effect=handler):
            learner.put()

    return put


#: ndb never ends a transaction for which a tasklet waits whose event loop was interrupted. When it
#: is collected as garbage, it changes the context of whatever runs then.
ABANDONED: list[Any] = []


def interrupted_in_the_wait(begin_put: Callable[[Callable[[], Any]], Any]) -> Callable[[Any], None]:
    """Return what puts; the signal comes in the wait for the commit."""

    def put(held: Any) -> None:
        sent: list[str] = []

        def begin_call(stub: Any, name: str, *args: Any, **options: Any) -> Any:
            sent.append(name)
            return begin(stub, name, *args, **options)

        def run0(loop: Any) -> Any:
            if "commit" in sent and loop.rpcs:
                sent.clear()
                held.wait()
                handler: Any = signal.getsignal(signal.SIGUSR1)
                handler()
            return run(loop)

        def change() -> Any:
            learner = Learner.get_by_id("ann")
            learner.points = 7
            return learner.put_async()

        with (
            mock.patch.object(stub, "begin_call", begin_call),
            mock.patch.object(_eventloop.EventLoop, "run0", run0),
        ):
            ABANDONED.append(begin_put(change))
            ABANDONED[-1].result()

    begin, run = calls.begin_call, _eventloop.EventLoop.run0
    return put


put_and_be_interrupted = interrupted_in_the_wait(lambda change: change())


@pytest.mark.parametrize("kind", [Late, Stopped])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_transaction_whose_block_has_just_ended_is_ended(
    server: Wire, kind: type[BaseException], when: str
) -> None:
    """It would keep its rows from others until Datastore gives it up, or be committed later."""
    set_result = tasklets.Future.set_result

    def interrupted(future: Any, result: Any) -> None:
        if future.info != "the block of a transaction":
            set_result(future, result)
            return
        if when == "after":
            set_result(future, result)
        raise kind

    with (
        mock.patch.object(tasklets.Future, "set_result", interrupted),
        pytest.raises(kind),
        transactions.open_transaction(),
    ):
        Learner.get_by_id("ann")
    wait_until(lambda: server.names.count("rollback") == server.begun == 1)
    assert "commit" not in server.names


@pytest.mark.parametrize("kind", [Late, Stopped])
def test_a_transaction_that_is_interrupted_as_it_begins(
    server: Wire, kind: type[BaseException]
) -> None:
    """The caller gets that exception."""
    with (
        mock.patch.object(tasklets, "wait_any", mock.Mock(side_effect=kind)),
        pytest.raises(kind),
        transactions.open_transaction(),
    ):
        raise AssertionError("its block runs")
    assert "commit" not in server.names


#: Code that a put runs from the RPC to the wait for it.
INTERRUPTED = [
    interrupted_after(stub, "begin_call"),
    interrupted_after(calls.Running, "_send_all"),
    interrupted_after(stub._Plan, "run"),
    interrupted_after(stub._Commit, "future"),
    interrupted_after(_remote, "RemoteCall"),
    interrupted_after(_eventloop.EventLoop, "queue_rpc"),
    put_and_be_interrupted,
    interrupted_in_the_wait(ndb.transaction_async),
]


def put_beside_a_failing_hook(held: Any) -> Any:
    """Put; the hook of another entity fails in the wait."""
    learner = Learner.get_by_id("ann")
    learner.points = 7
    Hooked().put_async(timeout=50)  # with another time-out it is in another commit
    learner.put()


@pytest.fixture
def leave(
    datastore: Emulator, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Any], Any], Any], list[bool]]:
    """Leave the lock by an interrupted put. Returns whether each wait at the end has ended it."""
    ended: list[bool] = []

    def run(put: Callable[[Any], Any], expected: Any, before: Any = lambda: None) -> list[bool]:
        wait = pending.wait_for
        holds: list[Any] = []

        def wait_as_it_goes_on(write: Any) -> bool:
            holds[0].remove()
            ended.append(wait(write))
            return ended[-1]

        for each in (pending, transactions):
            monkeypatch.setattr(each, "wait_for", wait_as_it_goes_on)

        def block() -> None:
            before()
            holds.append(datastore.faults.hold(kind="TestedLearner"))
            put(holds[0])

        with pytest.raises(expected), userlock.global_lock("ann"):
            block()
        holds[0].remove()
        with contextlib.suppress(userlock.StaleWriteError):  # else the end of the context raises it
            transactions.finish_writes()
        return ended

    return run


@pytest.mark.parametrize("put", INTERRUPTED)
def test_of_a_signal(leave: Any, put: Callable[[Any], Any], error: type[BaseException]) -> None:
    assert leave(put, error) == [True]
    assert userlock.holder("ann") is None
    assert stored_points() == 7


@pytest.mark.parametrize(
    "put",
    [
        interrupted_before(stub._Plan, "run"),
        interrupted_before(calls.Running, "advance"),
        interrupted_before(commits.PlainCommit, "_call_for"),
        interrupted_before(calls.Running, "_send_all"),
        interrupted_before(stub._Commit, "_send"),
    ],
)
def test_of_a_signal_before_it_is_sent(
    put: Callable[[Any], Any],
    error: type[BaseException],
    datastore: Emulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lock is left at once: no reply comes."""

    def take_when_done(running: Any, timeout: float | None) -> Any:
        done.append(running.done())
        return take(running, timeout)

    done: list[bool] = []
    take = calls.Running._take
    monkeypatch.setattr(calls.Running, "_take", take_when_done)
    monkeypatch.setattr(pending, "_PATIENCE", 0.05)
    with pytest.raises(error), userlock.global_lock("ann"):
        put(None)
    assert all(done)
    assert userlock.holder("ann") is None
    assert stored_points() == 0


@pytest.mark.parametrize("error", [Stopped], indirect=True)
def test_of_a_signal_where_ndb_loses_the_reply(
    error: type[BaseException],
    elsewhere: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def block() -> None:
        with userlock.global_lock("ann"):
            interrupted_before(_remote.RemoteCall, "add_done_callback")(None)

    monkeypatch.setattr(pending, "_LOOK_SECONDS", 0.01)
    with pytest.raises(error):
        elsewhere(block)
    assert "is left before a write under it has landed" not in caplog.text
    assert userlock.holder("ann") is None
    assert stored_points() == 7


@pytest.mark.timeout(20)
@pytest.mark.parametrize("error", [Stopped], indirect=True)
@pytest.mark.parametrize("owner", [_remote.RemoteCall, stub._ChangedCall])
def test_of_a_signal_where_the_answer_to_a_get_is_asked_for(
    error: type[BaseException], owner: Any, elsewhere: Elsewhere
) -> None:
    """Its event loop does not wait for an answer that nobody would give it."""

    def block() -> None:
        with mock.patch.object(owner, "add_done_callback", interrupted), pytest.raises(error):
            Learner.get_by_id("ann")
        assert not handlers
        assert Learner.get_by_id("ann").points == 0

    def interrupted(call: Any, callback: Any) -> None:
        if handlers and callback.__name__ != "record_time":  # of ndb's own, which is not waited for
            handlers.pop()()
        add(call, callback)

    handlers: list[Any] = [signal.getsignal(signal.SIGUSR1)]
    add = owner.add_done_callback
    elsewhere(block)


def test_its_own_error_is_logged(
    leave: Any, error: type[BaseException], overtake: Overtake, caplog: pytest.LogCaptureFixture
) -> None:
    def change_behind_it() -> None:
        Learner.get_by_id("ann")
        overtake(add_five)

    assert leave(put_and_be_interrupted, error, change_behind_it) == [True]
    assert "a write of lock 'ann' failed as well" in caplog.text
    assert "StaleWriteError" in caplog.text
    assert stored_points() == 5


def test_of_another_entitys_hook(leave: Any) -> None:
    assert leave(put_beside_a_failing_hook, Late) == [True]
    assert stored_points() == 7


@pytest.mark.parametrize("error", [Late], indirect=True)
def test_it_does_not_wait_for_ever(
    leave: Any,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    datastore: Emulator,
) -> None:
    monkeypatch.setattr(pending, "_PATIENCE", 0.05)
    with datastore.faults.hold(kind="TestedLearner") as held:
        with pytest.raises(Late), userlock.global_lock("ann"):
            put_and_be_interrupted(held)
        assert "is left before a write under it has landed" in caplog.text
        assert userlock.holder("ann") is None


@pytest.mark.parametrize("error", [Late], indirect=True)
def test_the_control_leaves_it_on_its_way(
    leave: Any, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the write is forgotten."""
    monkeypatch.setattr(transactions, "finish", lambda *_, **__: None)
    assert leave(put_and_be_interrupted, error) == []


@pytest.mark.parametrize("releases", [True, False], ids=["released", "control"])
@pytest.mark.parametrize("error", [Late], indirect=True)
def test_of_a_transaction_with_a_lock_of_its_own(
    error: type[BaseException], releases: bool, datastore: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is released when the commit has landed. The transaction ends then, so code that goes on
    and takes the lock again reads what has landed."""

    def locked(change: Callable[[], Any]) -> Any:
        with userlock.global_lock("ann"):
            return change()

    def wait_as_it_goes_on(write: Any) -> bool:
        assert userlock.holder("ann") is not None
        held.remove()
        return wait(write)

    kept: list[Any] = []
    close, wait = transactions._close, pending.wait_for
    monkeypatch.setattr(transactions, "wait_for", wait_as_it_goes_on)
    if not releases:
        monkeypatch.setattr(transactions, "_close", lambda *given: kept.append(given))
    put = interrupted_in_the_wait(lambda change: ndb.transaction_async(lambda: locked(change)))
    with datastore.faults.hold(kind="TestedLearner") as held:
        with pytest.raises(error):
            put(held)
        if releases:
            assert locked(lambda: Learner.get_by_id("ann").points) == 7
    if releases:
        wait_until(lambda: userlock.holder("ann") is None)
    else:
        wait_until(lambda: stored_points() == 7)
        assert userlock.holder("ann") is not None
        close(*kept[0])
    assert stored_points() == 7


def test_of_the_release_of_locks_that_a_transaction_keeps(
    error: type[BaseException], service: userlock.LockService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are released, and the lock itself is given back later."""

    def work() -> None:
        for each in ("ann", "bob"):
            with userlock.global_lock(each):
                pass
        monkeypatch.setattr(service, "released", mock.Mock(side_effect=interrupt))

    def interrupt(*_: object) -> None:
        monkeypatch.setattr(service, "released", released)
        raise error

    released = service.released
    with pytest.raises(error):
        ndb.transaction(work)
    wait_until(lambda: userlock.holder("ann") is None)
    assert userlock.holder("bob") is None


@pytest.mark.parametrize("where", ["in its put", "in a callback"])
def test_of_a_transaction_that_keeps_a_lock(error: type[BaseException], where: str) -> None:
    """The lock is released, whatever callbacks the transaction has, such as of a global cache."""

    def work() -> None:
        if where == "in a callback":
            ndb.get_context().call_on_transaction_complete(handler)
        with userlock.global_lock("ann"):
            learner = Learner.get_by_id("ann")
            if where == "in its put":
                cache.watch = mock.Mock(side_effect=handler)
            learner.put()

    handler: Any = signal.getsignal(signal.SIGUSR1)
    cache: Any = global_cache._InProcessGlobalCache()
    with ndb.get_context().new(global_cache=cache).use(), pytest.raises(error):
        ndb.transaction(work)
    wait_until(lambda: userlock.holder("ann") is None)


@pytest.mark.parametrize("error", [Late, Stopped], indirect=True)
@pytest.mark.parametrize(
    "where",
    [
        "before it is waited for",
        "in its function",
        "in the loop",
        "in a context within it",
        "before its commit is sent",
    ],
)
def test_a_transaction_that_is_interrupted_ends(
    error: type[BaseException], where: str, elsewhere: Elsewhere
) -> None:
    """It is rolled back: nobody waits for what it has read. Nothing of it is left to the garbage
    collector, or in the cache."""

    @ndb.tasklet
    def rest() -> Any:
        yield ndb.sleep(5)

    def work() -> Any:
        learner = Learner.get_by_id("ann")
        learner.points = 7
        if where == "in the loop":
            ndb.get_context().eventloop.call_soon(signal.raise_signal, signal.SIGUSR1)
            return learner.put_async()
        if where == "in a context within it":
            ndb.get_context().eventloop.call_soon(signal.raise_signal, signal.SIGUSR1)
            with ndb.get_context().new(transaction=None).use():
                return rest()
        learner.put()
        if where == "in its function":
            signal.raise_signal(signal.SIGUSR1)
        return None

    with userlock.global_lock("ann"):
        for _ in range(2):
            patched: Any = contextlib.nullcontext()
            handler: Any = signal.getsignal(signal.SIGUSR1)
            if where == "before its commit is sent":
                patched = mock.patch.object(commits, "key_of", side_effect=handler)
            if where == "before it is waited for":
                patched = mock.patch.object(transactions, "_with_its_error", side_effect=handler)
            with patched, pytest.raises(error):
                ndb.transaction(work)
        context = ndb.get_context()
        gc.collect()
        assert ndb.get_context() is context
        assert Learner.get_by_id("ann").points == 0
    begun_at = time.monotonic()
    elsewhere(add_five)
    assert time.monotonic() - begun_at < 30  # after a minute Datastore ends it
    assert stored_points() == 5


@pytest.mark.parametrize("error", [Late, Stopped], indirect=True)
@pytest.mark.parametrize(
    ("owner", "name"),
    [(calls._Transaction, "put_options"), (stub, "origin"), (stub, "_ChangedCall")],
)
def test_a_transaction_that_is_interrupted_where_it_begins_is_not_run_again(
    error: type[BaseException], owner: Any, name: str
) -> None:
    """If its first read was sent, the second run would wait for what that has locked."""
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        Learner.get_by_id("ann")

    handler: Any = signal.getsignal(signal.SIGUSR1)
    with (
        mock.patch.object(owner, name, side_effect=handler),
        pytest.raises(error),
    ):
        ndb.transaction(work)
    assert runs == [1]


@pytest.mark.parametrize("error", [Late, Stopped], indirect=True)
def test_an_interrupted_read_after_the_commit_lets_no_write_be_lost(
    error: type[BaseException],
) -> None:
    refused: list[Any] = []

    def after(learner: Any) -> None:
        handler: Any = signal.getsignal(signal.SIGUSR1)
        with mock.patch.object(stub, "origin", side_effect=handler), pytest.raises(error):
            Learner.get_by_id("bob")
        with pytest.raises(userlock.WriteAfterCommit) as caught:
            learner.put()
        refused.append(caught.value.key)

    def work() -> None:
        learner = Learner.get_by_id("ann")
        learner.points = 5
        learner.put()
        ndb.get_context().call_on_commit(lambda: after(learner))

    with userlock.global_lock("ann"):
        ndb.transaction(work)
    assert refused == [ndb.Key(Learner, "ann")]
    assert stored_points() == 5


def test_a_process_ends_although_a_transaction_was_left_half_way() -> None:
    """Its rollback would need a thread, which cannot begin any more."""
    program = """
from google.cloud import ndb
import userlock.ndb.model

class Note(ndb.Model):
    def _post_put_hook(self, future):
        raise KeyError("a hook")

with ndb.Client().context():
    try:
        Note.get_or_insert("a")
    except KeyError:
        print("left")
"""
    ended = run_python("-c", program)
    assert (ended.returncode, ended.stdout) == (0, "left\n"), ended.stderr


@pytest.mark.parametrize("error", [Late, Stopped], indirect=True)
@pytest.mark.parametrize("after", [calls.Running, stub._Plan])
def test_of_a_signal_where_a_put_has_begun_a_transaction(
    error: type[BaseException], after: Any, elsewhere: Elsewhere
) -> None:
    """With claims. The transaction is rolled back, or the put lands."""

    def put() -> None:
        with userlock.global_lock("ann"):
            Titled(parent=ndb.Key("User", "ann"), id="a", title="x").put()

    def interrupt(*args: Any) -> None:
        function(*args)
        if threading.current_thread() is threading.main_thread():  # not a later step, in gRPC's
            handler()

    handler: Any = signal.getsignal(signal.SIGUSR1)
    name = "_send_all" if after is calls.Running else "run"
    function = getattr(after, name)
    with mock.patch.object(after, name, interrupt), pytest.raises(error):
        put()
    begun_at = time.monotonic()
    elsewhere(put)
    assert time.monotonic() - begun_at < 30  # after a minute Datastore ends it


@pytest.mark.parametrize("error", [Late, Stopped], indirect=True)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (calls.Running, "_send_all"),
        (commits, "_landed"),
        (commits.TransactionCommit, "_find_refused"),
        (commits.TransactionCommit, "_commit"),
        (commits, "name_of"),
    ],
)
def test_of_a_signal_where_the_reply_has_come_at_once(
    error: type[BaseException], owner: Any, name: str, elsewhere: Elsewhere
) -> None:
    """The steps of a put with claims then run in its own thread. The transaction is ended."""

    def put() -> None:
        with userlock.global_lock("ann"):
            Titled(parent=ndb.Key("User", "ann"), id="a", title="x").put()

    def begin_call(*args: Any, **options: Any) -> Any:
        call = begin(*args, **options)
        wait_until(call.done)
        begun.append(call)
        return call

    def interrupt(*args: Any) -> Any:
        if begun:
            interrupted.stop()
            handler()
        return function(*args)

    begun: list[Any] = []
    handler: Any = signal.getsignal(signal.SIGUSR1)
    begin, function = calls.begin_call, getattr(owner, name)
    interrupted = mock.patch.object(owner, name, interrupt)
    interrupted.start()
    with mock.patch.object(stub, "begin_call", begin_call), pytest.raises(error):
        put()
    begun_at = time.monotonic()
    elsewhere(put)
    assert time.monotonic() - begun_at < 15  # after a minute Datastore ends it


@pytest.mark.parametrize("error", [Late], indirect=True)
def test_of_several_at_once(error: type[BaseException], key: ndb.Key) -> None:
    """Its error is raised, not ndb's of a write for which the event loop has nothing to do."""

    def interrupt(*_: object, **options: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    with (
        userlock.global_lock("ann"),
        mock.patch.object(_datastore_api, "_datastore_commit", interrupt),
        pytest.raises(error),
    ):
        ndb.put_multi([key.get(), Hooked()])


@pytest.mark.parametrize("error", [Late], indirect=True)
def test_of_a_tasklet_that_waits_for_a_transaction(
    error: type[BaseException], datastore: Emulator
) -> None:
    """The end of the scope waits for the commit, and releases the lock of the transaction."""

    def locked(change: Callable[[], Any]) -> Any:
        with userlock.global_lock("ann"):
            return change()

    @ndb.tasklet
    def changed(change: Callable[[], Any]) -> Any:
        result = yield ndb.transaction_async(lambda: locked(change))
        return result

    put = interrupted_in_the_wait(changed)
    with userlock.scope():
        with datastore.faults.hold(kind="TestedLearner") as held, pytest.raises(error):
            put(held)
        assert userlock.holder("ann") is not None
    assert userlock.holder("ann") is None
    assert stored_points() == 7
