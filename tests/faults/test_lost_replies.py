"""Replies that are lost, late or cut short, at each step.

The invariant throughout: nobody's lease but our own is ever deleted, and a lock that is ours
is known to be ours.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

import userlock
from tests.faults.proxy import Fault, FaultProxy
from tests.faults.tidy import tidy_up
from userlock.lock.lease import Free, Held, Lost, Priority, Released
from userlock.stores import MemcacheStore
from userlock.testing import granted, make_claim

#: Those after which a command has been carried out, or never will be.
FAULTS = [fault for fault in Fault if fault is not Fault.DELAY]


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
