"""A lock is left: writes begun under it land first, and their errors are raised."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, add_five, stored_points
from tests.contract.ndb.models import Learner, VideoLog
from userlock.lock.scope import current
from userlock.ndb import pending
from userlock.ndb.transactions import finish_writes
from userlock.stores import MemoryStore
from userlock_emulator import Emulator
from userlock_emulator.datastore.faults import Fault


def begin_a_stale_put(store: MemoryStore, elsewhere: Elsewhere) -> Any:
    """Begin a put whose lock is lost and whose entity another request has changed."""
    learner = Learner.get_by_id("ann")
    store.evict("ann")
    elsewhere(add_five)
    return learner.put_async()


@pytest.mark.usefixtures("key")
def test_leaving_the_lock_waits_for_its_puts_and_deletes(
    store: MemoryStore, elsewhere: Elsewhere
) -> None:
    with userlock.global_lock("ann"):
        learner = Learner.get_by_id("ann")
        learner.points = 5
        future = learner.put_async()
        log = VideoLog(learner_id="ann")
        log.put_async()
    assert future.done()
    found: list[tuple[int, int]] = []
    elsewhere(lambda: found.append((Learner.get_by_id("ann").points, VideoLog.query().count())))
    assert found == [(5, 1)]
    with userlock.global_lock("ann"):
        deleted = ndb.Key(Learner, "ann").delete_async()
    assert deleted.done()
    elsewhere(lambda: found.append((Learner.query().count(), 0)))
    assert found[1:] == [(0, 0)]
    with userlock.global_lock("ann"):
        created = Learner.get_or_insert_async("ann")
    assert created.done()


@pytest.mark.usefixtures("context")
def test_each_lock_waits_for_a_delete_whose_key_names_none() -> None:
    with userlock.global_lock("ann"):
        key = VideoLog(learner_id="ann").put()
    ndb.get_context().clear_cache()
    with userlock.global_lock("coach"):
        with userlock.global_lock("ann"):
            deleted = key.delete_async()
        assert deleted.done()


@pytest.mark.usefixtures("key")
@pytest.mark.parametrize("act", [lambda key: key.get().put_async(), lambda key: key.delete_async()])
@pytest.mark.parametrize("how", ["leaving", "finishing"])
def test_so_does_a_coroutine(act: Callable[[ndb.Key], Any], how: str, caplog: Any) -> None:
    """The thread that leaves the lock for it could not send them."""

    async def begin() -> None:
        async with userlock.global_lock("ann"):
            future = act(ndb.Key(Learner, "ann"))
            if how == "finishing":  # before an answer is sent
                await userlock.current_scope().afinish_writes()
                assert future.done()
        assert future.done()
        future.result()

    asyncio.run(begin())
    assert caplog.text == ""


@pytest.mark.usefixtures("key")
def test_an_error_in_the_block_is_not_hidden_by_that_of_a_pending_put(
    store: MemoryStore, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    def handler() -> None:
        with userlock.global_lock("ann"):
            begin_a_stale_put(store, elsewhere)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        handler()
    assert "StaleWriteError" in caplog.text
    with pytest.raises(userlock.StaleWriteError):
        finish_writes()


@pytest.mark.usefixtures("context")
def test_a_failure_in_a_context_within_a_transaction() -> None:
    """Its error is raised before the commit, or half of the writes would land."""

    def broken(key: Any) -> bool:
        raise ZeroDivisionError

    def put_two() -> None:
        Learner(id="bob").put_async()
        with ndb.get_context().new().use() as within:
            within.set_datastore_policy(broken)
            Learner(id="cy").put_async()

    with userlock.global_lock("bob"), userlock.global_lock("cy"), pytest.raises(ZeroDivisionError):
        ndb.transaction(put_two)
    assert stored_points("bob") is None


def at_the_top(act: Callable[[], None]) -> None:
    act()


def in_a_context_within(act: Callable[[], None]) -> None:
    with ndb.get_context().new(cache=None).use():
        act()


@pytest.mark.parametrize("where", [at_the_top, in_a_context_within])
@pytest.mark.parametrize("sent", [False, True], ids=["not sent yet", "to be sent again"])
def test_a_context_that_is_over(
    ndb_client: ndb.Client,
    service: userlock.LockService,
    datastore: Emulator,
    caplog: pytest.LogCaptureFixture,
    where: Callable[[Callable[[], None]], None],
    sent: bool,
) -> None:
    """The lock is around it, and an exception leaves both: ndb waits for nothing then."""
    puts: list[Any] = []

    def put_and_fail() -> None:
        puts.append(Learner(id="bob", points=7).put_async())
        if sent:
            refused = datastore.faults.unavailable(rpc="Commit")
            while not refused.hits:
                ndb.get_context().eventloop.run0()
        raise ZeroDivisionError

    def handler() -> None:
        with userlock.global_lock("bob"), ndb_client.context():
            where(put_and_fail)

    with pytest.raises(ZeroDivisionError):
        handler()
    assert puts[0].done()
    assert "a write of" not in caplog.text
    with ndb_client.context():
        assert Learner.get_by_id("bob").points == 7
    assert ndb.get_context(False) is ndb.context.get_toplevel_context(False) is None


def test_a_transaction_that_is_over(ndb_client: ndb.Client, service: userlock.LockService) -> None:
    """Writes begun in it are dropped; writes begun after it land."""

    def put_and_fail() -> None:
        VideoLog(learner_id="bob").put_async()  # its id is still to be allocated
        raise ZeroDivisionError

    def handler() -> None:
        with userlock.global_lock("bob"), ndb_client.context():
            try:
                ndb.transaction(put_and_fail)
            finally:
                Learner(id="bob", points=7).put_async()

    with pytest.raises(ZeroDivisionError):
        handler()
    with ndb_client.context():
        assert Learner.get_by_id("bob").points == 7
        assert VideoLog.query().count() == 0


class TestAnotherThread:
    """It shares the scope, as in `asyncio.to_thread`; the lock is left while it still puts."""

    def leave(self, client: ndb.Client, datastore: Emulator) -> Fault:
        """Leave the lock while another thread puts. Returns the fault that delays its commit."""

        def put() -> None:
            with client.context():
                Learner(id="bob", points=7).put_async()

        held = datastore.faults.hold()
        with userlock.global_lock("bob"):
            self.worker = threading.Thread(target=contextvars.copy_context().run, args=(put,))
            self.worker.start()
            held.wait()
        return held

    def test_its_put_is_waited_for(
        self,
        ndb_client: ndb.Client,
        service: userlock.LockService,
        datastore: Emulator,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        wait = pending._wait_for_thread

        def wait_as_it_goes_on(future: Any) -> bool:
            assert not future.done()
            datastore.faults.clear()
            landed = wait(future)
            assert future.done()
            return landed

        monkeypatch.setattr(pending, "_wait_for_thread", wait_as_it_goes_on)
        self.leave(ndb_client, datastore)
        self.worker.join()
        assert caplog.text == ""
        with ndb_client.context():
            assert Learner.get_by_id("bob").points == 7

    def test_but_not_for_ever(
        self,
        ndb_client: ndb.Client,
        service: userlock.LockService,
        datastore: Emulator,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(pending, "_PATIENCE_WITH_THREADS", 0.01)
        held = self.leave(ndb_client, datastore)
        assert "lock 'bob' is left before a write under it has landed" in caplog.text
        assert userlock.holder("bob") is None
        held.remove()
        self.worker.join()


@pytest.mark.usefixtures("key")
def test_a_block_in_a_thread_writes_after_its_request_has_ended(ndb_client: ndb.Client) -> None:
    """As after a time limit of the request: the thread cannot be stopped."""
    inside, ended = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def save() -> None:
        try:
            with ndb_client.context(), userlock.global_lock("ann"):
                inside.set()
                assert ended.wait(30)
                add_five()
        except BaseException as error:
            errors.append(error)

    of_the_request = contextvars.Context()  # without the test's own ndb context
    with userlock.scope() as scope:
        of_the_request.run(current.set, scope)
        thread = threading.Thread(target=of_the_request.run, args=(save,))
        thread.start()
        assert inside.wait(30)
    ended.set()
    thread.join()
    assert errors == []
    assert stored_points() == 5


@pytest.mark.parametrize(
    "begin", [lambda other: ndb.put_multi([other]), lambda other: ndb.transaction(other.put)]
)
def test_a_thread_does_not_wait_for_the_writes_of_another_one(
    ndb_client: ndb.Client,
    service: userlock.LockService,
    monkeypatch: pytest.MonkeyPatch,
    begin: Callable[[Any], object],
) -> None:
    """It runs in a copy of the context variables; the other thread waits for it."""
    monkeypatch.setattr(pending, "_wait_for_thread", lambda future: pytest.fail("it waits"))
    with ndb_client.context(), userlock.global_lock("bob"):
        futures = [VideoLog(learner_id="bob").put_async() for _ in range(3)]
        asyncio.run(asyncio.to_thread(begin, Learner(id="bob", points=7)))
        for future in futures:
            future.result()
        assert stored_points("bob") == 7
