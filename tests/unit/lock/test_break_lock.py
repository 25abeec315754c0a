"""The functions `holder`, `waiters` and `break_lock`, for operators."""

from __future__ import annotations

import logging

import pytest

import userlock
from tests.leases import existing
from tests.unit.lock.pulse import Here
from userlock import LockService
from userlock.events import Broken, Event
from userlock.lock.lease import process_label
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run

FOREIGN = [b"", b"\x00\xff", b"[1,2,3,4,5,6]"]


pytestmark = pytest.mark.usefixtures("configured")


class TestLooking:
    def test_nobody(self) -> None:
        assert userlock.holder("ann") is None
        assert userlock.waiters("ann") == []

    def test_the_holder(self, service: LockService, clock: ManualClock) -> None:
        with userlock.scope(priority="batch", request="nightly"), userlock.global_lock("ann"):
            found = existing(userlock.holder("ann"))
            assert (found.priority, found.request) == ("batch", "nightly")
            assert found.process == process_label()
            assert found.since == pytest.approx(clock.wall(), abs=0.01)

    def test_waiters_in_the_order_of_service(self, service: LockService) -> None:
        with userlock.global_lock(7):
            for request, priority in (("1", "batch"), ("2", "interactive"), ("3", "interactive")):
                claim = make_claim("7", request=request, priority=userlock.Priority.of(priority))
                run(service.protocol.join, claim)
            queue = userlock.waiters(7)
            assert [waiter.request for waiter in queue] == ["2", "3", "1"]
            assert [waiter.priority for waiter in queue] == ["interactive", "interactive", "batch"]

    def test_the_scope_says_where_to_look(self, clock: ManualClock) -> None:
        other = LockService(MemoryStore(clock=clock), clock=clock)
        other.acquire("ann")
        assert userlock.holder("ann") is None
        with userlock.scope(other):
            assert userlock.holder("ann") is not None
            assert userlock.break_lock("ann") is not None
            assert userlock.holder("ann") is None


class TestBreaking:
    def test_nobody_holds_it(self, store: MemoryStore, events: list[Event]) -> None:
        assert userlock.break_lock("ann") is None
        assert store.read("ann") is None
        assert events == []

    def test_the_holder_is_named_to_the_operator_and_in_the_log(
        self, events: list[Event], caplog: pytest.LogCaptureFixture
    ) -> None:
        with userlock.scope(request="POST /slow") as scope:
            lock = userlock.acquire_lock("ann").tenure
            with caplog.at_level(logging.WARNING, "userlock"):
                broken = userlock.break_lock("ann", by="Jo")
            assert broken is not None
            assert broken.request == "POST /slow"
            assert broken.token == lock._lease.token
            assert events[-1] == Broken("ann", broken.describe(), "Jo")
            assert "lock 'ann' broken by Jo; it was held by POST /slow" in caplog.text
            assert scope.held, "its holder does not know yet"

    def test_by_default_this_process_is_named(self, events: list[Event]) -> None:
        with userlock.global_lock("ann"):
            userlock.break_lock("ann")
        broken = next(event for event in events if isinstance(event, Broken))
        assert broken.by == process_label()

    def test_waiters_are_not_broken_with_it(self, service: LockService) -> None:
        with userlock.global_lock("ann"):
            claim = make_claim("ann", request="GET /waiting")
            run(service.protocol.join, claim)
            assert userlock.break_lock("ann") is not None
            assert userlock.break_lock("ann") is None, "nobody has it"
            assert [waiter.request for waiter in userlock.waiters("ann")] == ["GET /waiting"]

    def test_only_the_holder_that_the_operator_has_seen(self, service: LockService) -> None:
        seen = service.acquire("ann")
        service.release(seen)
        service.acquire("ann", request="POST /next")
        assert service.break_lock("ann", token=seen.token) is None
        holder = existing(userlock.holder("ann"))
        assert holder.request == "POST /next"
        assert service.break_lock("ann", token=holder.token) is not None
        assert userlock.holder("ann") is None

    @pytest.mark.parametrize("foreign", FOREIGN)
    def test_a_record_that_userlock_did_not_write(self, here: Here, foreign: bytes) -> None:
        here.store.create("ann", foreign, 60)
        assert "did not write" in existing(userlock.holder("ann")).process
        assert userlock.waiters("ann") == []
        assert userlock.break_lock("ann") is not None
        assert here.store.read("ann") is None
        with userlock.global_lock("ann", wait_timeout=0) as lock:
            assert not lock.degraded

    def test_one_that_is_changed_meanwhile(self, service: LockService, store: MemoryStore) -> None:
        """Read as foreign, but ours by the time of the removal: it is left alone."""

        def ours_now() -> None:
            store.evict("ann")
            service.acquire("ann", request="POST /ours")

        store.create("ann", b"foreign", 60)
        store.before("remove", ours_now)
        assert userlock.break_lock("ann", by="Jo") is None
        assert existing(userlock.holder("ann")).request == "POST /ours"

    def test_handed_over_at_this_very_moment(self, here: Here) -> None:
        """The next holder is spared: it is not the one to break."""

        def hand_over() -> None:
            here.service.release(lease)
            here.service.acquire("ann", request="POST /next")

        lease = here.service.acquire("ann", request="POST /first")
        here.store.before("append", hand_over)
        assert userlock.break_lock("ann", by="Jo") is None
        assert existing(userlock.holder("ann")).request == "POST /next"
        assert not any(isinstance(event, Broken) for event in here.events)
