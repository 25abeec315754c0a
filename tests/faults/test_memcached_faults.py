"""memcached in trouble: lost replies, cut connections, restarts, stops, evictions.

The invariant throughout: nobody's lease but our own is ever deleted, a lock
that is ours is known to be ours, and no call takes longer than its bound.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pymemcache.client.base import Client

import userlock
from tests.faults.proxy import Fault, FaultProxy
from tests.servers import Memcached
from userlock.lock.lease import Free, Granted, Held, Lost, Priority, Released, Unavailable
from userlock.stores import MemcacheStore
from userlock.testing import granted, make_claim

#: Those after which a command has been carried out, or never will be.
FAULTS = [fault for fault in Fault if fault is not Fault.DELAY]


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def proxy(memcached: Memcached) -> Iterator[FaultProxy]:
    with FaultProxy(memcached.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultProxy, prefix: str) -> Iterator[MemcacheStore]:
    """Through the proxy, with a connection that stands already."""
    store = MemcacheStore(proxy.address, prefix=prefix)
    store.read("warm-up")
    yield store
    store.close()


@pytest.fixture
def direct(memcached: Memcached, prefix: str) -> Iterator[MemcacheStore]:
    """The same keys, past the proxy."""
    store = MemcacheStore(memcached.address, prefix=prefix)
    yield store
    store.close()


def tidy_up(service: userlock.LockService) -> None:
    """Return when the service has had an answer again, and has given back what it owed."""
    deadline = time.monotonic() + 5
    while True:
        lease = service.acquire(uuid.uuid4().hex)
        service.release(lease)
        if not lease.degraded:
            return
        assert time.monotonic() < deadline


class TestLostReplies:
    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("priority", list(Priority))
    def test_an_add_whose_reply_is_lost_is_ours_all_the_same(
        self, proxy: FaultProxy, store: MemcacheStore, fault: Fault, priority: Priority
    ) -> None:
        claim = make_claim(priority=priority)
        started = time.monotonic()
        with proxy.fault(b"ms ", fault):
            lease = granted(store.add(claim))
        assert time.monotonic() - started < 0.6
        assert store.read(claim.lock_id) == Held(claim.holder)
        assert store.release(lease) == Released()

    def test_without_the_read_back_it_would_block_until_it_runs_out(
        self,
        proxy: FaultProxy,
        store: MemcacheStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The negative control: an add that is simply sent again meets its own lease."""
        monkeypatch.setattr(store, "_look_for", lambda *_: None)
        with proxy.fault(b"ms ", Fault.DROP_REPLY):
            assert store.add(make_claim()) == Held(None)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_an_add_on_a_held_lock_whose_reply_is_lost_is_not_ours(
        self, proxy: FaultProxy, store: MemcacheStore, direct: MemcacheStore, fault: Fault
    ) -> None:
        holder = make_claim()
        granted(direct.add(holder))
        with proxy.fault(b"ms ", fault):
            assert store.add(make_claim()) == Held(holder.holder)

    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_release_whose_reply_is_lost_is_carried_out(
        self, proxy: FaultProxy, store: MemcacheStore, direct: MemcacheStore, fault: Fault
    ) -> None:
        lease = granted(store.add(make_claim()))
        with proxy.fault(b"md ", fault):
            assert store.release(lease) == Released()
        assert direct.read(lease.lock_id) == Free()

    @pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.CUT_BEFORE])
    def test_a_release_after_the_connection_broke_leaves_the_next_owner_alone(
        self, proxy: FaultProxy, store: MemcacheStore, direct: MemcacheStore, fault: Fault
    ) -> None:
        lease = granted(store.add(make_claim()))
        direct.release(lease)
        successor = make_claim()
        granted(direct.add(successor))
        with proxy.fault(b"md ", fault):
            assert store.release(lease) == Lost(successor.holder)
        assert direct.read(lease.lock_id) == Held(successor.holder)

    def test_a_whole_acquire_with_every_step_failing_once(
        self, proxy: FaultProxy, store: MemcacheStore
    ) -> None:
        service = userlock.LockService(store)
        proxy.faults.update(
            {b"ms ": Fault.DROP_REPLY, b"gets ": Fault.CUT_AFTER, b"md ": Fault.CUT_REPLY}
        )
        lease = service.acquire("learner-1")
        service.release(lease)
        tidy_up(service)
        assert store.read("learner-1") == Free()


class TestLateCommands:
    def test_an_add_that_arrives_after_all_is_tidied_up(
        self, proxy: FaultProxy, store: MemcacheStore, direct: MemcacheStore
    ) -> None:
        """Sent, lost sight of, sent again, granted, released: and then the first one arrives."""
        service = userlock.LockService(store)
        with proxy.fault(b"ms ", Fault.DELAY):
            lease = service.acquire("learner-1")
        assert not lease.degraded
        service.release(lease)
        proxy.deliver()
        deadline = time.monotonic() + 5
        while isinstance(direct.read("learner-1"), Free):
            assert time.monotonic() < deadline, "the late command did not arrive"
        while not isinstance(direct.read("learner-1"), Free):
            service.release(service.acquire("another"))
            assert time.monotonic() < deadline, "nobody holds it, and it stays locked"


class TestInterruptedThreads:
    def test_a_connection_that_was_interrupted_is_not_used_again(
        self, proxy: FaultProxy, store: MemcacheStore, direct: MemcacheStore
    ) -> None:
        """Its late reply ("HD") would be taken for the answer to the next command."""

        class Stop(BaseException):
            pass

        holder = make_claim("held")
        granted(direct.add(holder))
        (connection,) = store._connections._idle

        class Interrupted:
            def __init__(self, sock: Any) -> None:
                self._sock = sock

            def recv(self, *_: object) -> bytes:
                raise Stop

            def __getattr__(self, name: str) -> Any:
                return getattr(self._sock, name)

        connection.client.sock = Interrupted(connection.client.sock)
        with pytest.raises(Stop):
            store.add(make_claim("free"))
        assert store.add(make_claim("held")) == Held(None)


class TestRestart:
    def test_idle_connections_are_renewed_without_a_degraded_lease(
        self, own_memcached: Memcached
    ) -> None:
        service = userlock.LockService.from_url(own_memcached.url())
        service.release(service.acquire("learner-1"))
        own_memcached.restart()
        lease = service.acquire("learner-1")
        assert not lease.degraded
        service.release(lease)

    def test_a_release_after_a_restart_leaves_the_next_owner_alone(
        self, own_memcached: Memcached
    ) -> None:
        """CAS numbers begin again: the old lease's number is the next owner's."""
        mine = MemcacheStore(own_memcached.address)
        theirs = MemcacheStore(own_memcached.address)
        lease = granted(mine.add(make_claim()))
        own_memcached.restart()
        successor = make_claim()
        next_lease = granted(theirs.add(successor))
        assert lease.proof.cas == next_lease.proof.cas  # type: ignore[attr-defined]
        assert mine.release(lease) == Lost(successor.holder)
        assert theirs.read(lease.lock_id) == Held(successor.holder)

    def test_by_its_number_alone_it_would_delete_the_next_owners(
        self, own_memcached: Memcached, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        mine = MemcacheStore(own_memcached.address)
        theirs = MemcacheStore(own_memcached.address)
        lease = granted(mine.add(make_claim()))
        own_memcached.restart()
        granted(theirs.add(make_claim()))
        mine.close()
        monkeypatch.setattr(
            "userlock.stores.memcache.connections.Connection.older_than", lambda *_: True
        )
        assert mine.release(lease) == Released()
        assert theirs.read(lease.lock_id) == Free()

    def test_a_lease_that_the_server_forgot_is_reported_lost(
        self, own_memcached: Memcached
    ) -> None:
        store = MemcacheStore(own_memcached.address)
        lease = granted(store.add(make_claim()))
        own_memcached.restart()
        assert store.release(lease) == Lost(None)
        assert store.extend(lease, 10) == Lost(None)


class TestOutage:
    def test_a_killed_server_costs_nearly_nothing(self, own_memcached: Memcached) -> None:
        service = userlock.LockService.from_url(own_memcached.url())
        service.release(service.acquire("learner-1"))
        own_memcached.kill()
        started = time.monotonic()
        for number in range(50):
            lease = service.acquire(f"learner-{number}")
            assert lease.degraded
            service.release(lease)
        assert time.monotonic() - started < 0.5
        own_memcached.start()
        assert not service.acquire("learner-1").degraded

    def test_a_stopped_server_costs_one_timeout(self, own_memcached: Memcached) -> None:
        service = userlock.LockService.from_url(own_memcached.url())
        service.release(service.acquire("learner-1"))
        with own_memcached.paused():
            started = time.monotonic()
            assert service.acquire("learner-1").degraded
            first = time.monotonic() - started
            started = time.monotonic()
            for number in range(50):
                assert service.acquire(f"learner-{number}").degraded
            rest = time.monotonic() - started
        assert first < 0.6
        assert rest < 0.2

    def test_what_a_stopped_server_carries_out_later_is_tidied_up(
        self, own_memcached: Memcached
    ) -> None:
        """Otherwise the learner would be locked out for a whole lease by nobody."""
        service = userlock.LockService.from_url(own_memcached.url())
        other = MemcacheStore(own_memcached.address, prefix="test")
        service.release(service.acquire("learner-1"))
        with own_memcached.paused():
            lease = service.acquire("learner-1")
            assert lease.degraded
            service.release(lease)
        deadline = time.monotonic() + 5
        while isinstance(other.read("learner-1"), Free | Unavailable):
            # The command waits in the server's socket; it is carried out soon.
            assert time.monotonic() < deadline
        tidy_up(service)
        assert other.read("learner-1") == Free()

    def test_an_address_that_does_not_resolve_is_not_a_hang(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        service = userlock.LockService.from_url("memcache://no-such-host.invalid:11211")
        started = time.monotonic()
        lease = service.acquire("learner-1")
        assert time.monotonic() - started < 1
        assert lease.degraded
        assert "no-such-host.invalid" in caplog.text
        failing = userlock.LockService.from_url(
            "memcache://no-such-host.invalid:11211", outage="fail"
        )
        with pytest.raises(userlock.LockServiceUnavailable, match=r"no-such-host\.invalid"):
            failing.acquire("learner-1")

    def test_a_look_up_that_hangs_is_not_a_hang(self, monkeypatch: pytest.MonkeyPatch) -> None:
        release = threading.Event()

        def hang(*_: object, **__: object) -> list[Any]:
            release.wait()
            return []

        monkeypatch.setattr("userlock.stores.memcache.connections.socket.getaddrinfo", hang)
        store = MemcacheStore("slow-host.invalid:11211")
        started = time.monotonic()
        outcome = store.add(make_claim())
        release.set()
        assert time.monotonic() - started < 0.5
        assert isinstance(outcome, Unavailable)
        assert "look-up" in outcome.reason

    def test_names_are_looked_up(self, memcached: Memcached, prefix: str) -> None:
        store = MemcacheStore(f"localhost:{memcached.port}", prefix=prefix)
        granted(store.add(make_claim()))


class TestForeignValues:
    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"{}",
            b"[]",
            b"null",
            b"\xff\xfe",
            b"MN\r\nHD c1\r\n",
            b"[" * 10_000,
            b"x" * 900_000,
        ],
    )
    def test_what_others_store_under_our_key_neither_crashes_nor_grants(
        self, memcached: Memcached, prefix: str, value: bytes
    ) -> None:
        with contextlib.closing(Client(memcached.address)) as client:
            client.set(f"{prefix}:lock=learner-1", value, noreply=False)
        store = MemcacheStore(memcached.address, prefix=prefix)
        assert store.add(make_claim()) == Held(None)
        seen = store.read("learner-1")
        assert isinstance(seen, Held)
        assert seen.holder is not None
        assert "did not write" in seen.holder.describe()
        service = userlock.LockService(store)
        with pytest.raises(userlock.LockTimeout, match="did not write"):
            service.acquire("learner-1", wait_timeout=0.05)


def _hold_and_stall(address: str, prefix: str, acquired: Any) -> None:
    store = MemcacheStore(address, prefix=prefix)
    service = userlock.LockService(store)
    service.acquire("learner-1", lock_timeout=2)
    acquired.set()
    threading.Event().wait()


def test_a_killed_holder_keeps_the_lock_for_its_lease_and_no_longer(
    memcached: Memcached, prefix: str
) -> None:
    spawn = multiprocessing.get_context("spawn")
    acquired = spawn.Event()
    process = spawn.Process(target=_hold_and_stall, args=(memcached.address, prefix, acquired))
    process.start()
    assert acquired.wait(20)
    taken = time.monotonic()
    process.kill()
    process.join()
    service = userlock.LockService(MemcacheStore(memcached.address, prefix=prefix))
    with pytest.raises(userlock.LockTimeout):
        service.acquire("learner-1", wait_timeout=1)
    lease = service.acquire("learner-1", wait_timeout=10)
    waited = time.monotonic() - taken
    service.release(lease)
    assert 2 - 0.1 <= waited <= 2 + 2.1


class TestFork:
    def test_a_forked_child_uses_connections_of_its_own(
        self, memcached: Memcached, prefix: str
    ) -> None:
        store = MemcacheStore(memcached.address, prefix=prefix)
        lease = granted(store.add(make_claim()))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                outcome = store.add(make_claim("child"))
                good = isinstance(outcome, Granted) and isinstance(store.add(make_claim()), Held)
                os.write(write, b"y" if good else b"n")
            finally:
                os._exit(0)
        os.close(write)
        assert os.read(read, 1) == b"y"
        os.waitpid(child, 0)
        os.close(read)
        assert store.release(lease) == Released()

    def test_a_fork_during_a_look_up_does_not_wait_for_it_for_ever(
        self, memcached: Memcached, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The thread that looks a name up is not there in the child."""
        answer = threading.Event()
        look_up = socket.getaddrinfo

        def slow(*args: Any, **kwargs: Any) -> Any:
            answer.wait()
            return look_up(*args, **kwargs)

        module = "userlock.stores.memcache.connections.socket.getaddrinfo"
        monkeypatch.setattr(module, slow)
        store = MemcacheStore(f"localhost:{memcached.port}", prefix=prefix)
        assert isinstance(store.add(make_claim()), Unavailable)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                monkeypatch.undo()
                code = 0 if isinstance(store.add(make_claim("child")), Granted) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        answer.set()
        assert os.waitstatus_to_exitcode(status) == 0

    def test_a_forked_child_does_not_release_its_parents_lock(
        self, memcached: Memcached, prefix: str
    ) -> None:
        store = MemcacheStore(memcached.address, prefix=prefix)
        userlock.configure(service=userlock.LockService(store))
        with userlock.global_lock("learner-1"):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with userlock.global_lock("another"):
                        pass
                    code = 0 if userlock.current_scope() is None else 2
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert isinstance(store.read("learner-1"), Held)
        assert store.read("learner-1") == Free()
