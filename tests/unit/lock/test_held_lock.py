"""Locks that were taken while the store did not answer: confirmed, in conflict, or continued."""

from __future__ import annotations

from typing import TypeVar

import pytest

import userlock
from tests.leases import dead_waiter, record_of
from tests.unit.lock.pulse import Here
from userlock import HeldLock, LockService
from userlock.events import Confirmed, Conflict, Event, LeaseLost, Released
from userlock.lock.scope import LockScope
from userlock.stores import MemoryStore
from userlock.testing import make_claim
from userlock.waits import run

_E = TypeVar("_E", bound=Event)


@pytest.fixture
def tenure(scope: LockScope, store: MemoryStore) -> HeldLock:
    """Provide a lock that was taken while the store is down; it stays down."""
    store.go_down("connection refused", sent=False)
    tenure = scope.acquire("ann")
    assert tenure.degraded
    return tenure


class TestConfirmed:
    def test_when_the_store_answers_again_it_is_ours(self, here: Here, tenure: HeldLock) -> None:
        here.live(5)
        assert here.of(Confirmed) == []
        here.store.come_back()
        here.live(0.3)
        assert not tenure.degraded
        (event,) = here.of(Confirmed)
        assert event.lock_id == "ann"
        assert event.degraded_seconds == pytest.approx(5.1, abs=0.3)
        assert not record_of(here.store, "ann").free
        with pytest.raises(userlock.LockTimeout):
            here.service.acquire("ann", wait_timeout=0)
        tenure.release()
        assert here.store.read("ann") is None
        assert here.of(Released)[-1].outcome == "released"

    def test_without_the_renewal_thread_it_is_not(self, here: Here, tenure: HeldLock) -> None:
        """The negative control: a site that asks only at the next acquire lets others in."""
        here.store.come_back()
        here.clock.advance(5)
        assert not here.service.acquire("ann", wait_timeout=0).degraded
        assert tenure.held

    def test_a_heartbeat_goes_on_after_it(self, here: Here, scope: LockScope) -> None:
        here.store.go_down()
        tenure = scope.acquire("ann", heartbeat=True)
        here.live(3)
        here.store.come_back()
        here.live(60)
        assert not tenure.degraded
        assert not tenure._ran_out
        assert not record_of(here.store, "ann").free

    def test_a_lock_without_one_is_not_renewed_by_it(self, here: Here, tenure: HeldLock) -> None:
        here.store.come_back()
        here.live(1)
        assert not tenure.degraded
        here.live(60)
        assert tenure._ran_out
        assert len(here.service.renewals) == 0

    def test_a_create_of_the_outage_that_landed_after_all_is_ours(
        self, here: Here, scope: LockScope
    ) -> None:
        """The holder counts from now, so the record's time to live must begin again."""
        here.store.delay("create")
        here.store.before("read", lambda: here.store.go_down(slow=True))
        tenure = scope.acquire("ann")
        here.store.come_back()
        here.store.arrive()
        here.clock.advance(50)
        here.service.renewals.run_due()
        assert not tenure.degraded
        here.clock.advance(50)
        assert not tenure._ran_out
        assert not record_of(here.store, "ann").lapsed

    def test_a_leftover_record_is_taken_over(self, here: Here, tenure: HeldLock) -> None:
        here.store.come_back()
        lease = here.service.acquire("ann", lock_timeout=0.1)
        here.clock.advance(0.2)
        here.service.renewals.run_due()
        here.live(0.3)
        assert not tenure.degraded
        assert record_of(here.store, "ann").holder.token != lease.token


def test_a_store_that_refuses_every_change_does_not_block_the_renewal_thread(
    here: Here, tenure: HeldLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, as long as the lock is held; other locks are renewed in between."""
    changes = 0

    def refused(*_: object) -> None:
        nonlocal changes
        changes += 1
        if changes == 1000:  # past the renewal thread, which continues after errors
            pytest.fail("it goes on and on")

    monkeypatch.setattr(here.store, "swap", refused)
    here.store.come_back()
    run(here.service.protocol.take, make_claim("ann", ttl_seconds=0.1))
    here.live(1)
    assert changes > 0
    assert tenure.degraded
    monkeypatch.undo()
    here.live(1)
    assert not tenure.degraded


class TestConflict:
    def test_another_holder_is_named_and_left_alone(self, here: Here, tenure: HeldLock) -> None:
        here.store.come_back()
        other = here.service.acquire("ann", request="POST /theirs")
        here.live(1)
        assert tenure.degraded
        assert tenure._conflict.startswith("POST /theirs (interactive, lease of 60 s, on ")
        assert here.of(Conflict) == [Conflict("ann", tenure._conflict)]
        here.live(5)
        assert len(here.of(Conflict)) == 1
        tenure.release()
        assert here.of(Released)[-1].outcome == "released (degraded)"
        assert record_of(here.store, "ann").holder.token == other.token
        assert not record_of(here.store, "ann").free

    def test_waiters_go_first(self, here: Here, tenure: HeldLock) -> None:
        here.store.come_back()
        other = here.service.acquire("ann")
        waiter = make_claim("ann", request="GET /next")
        run(here.service.protocol.join, waiter)
        here.service.release(other)
        here.live(0.3)
        assert (tenure.degraded, tenure._conflict) == (True, ""), "not decided yet"
        record = record_of(here.store, "ann")
        assert run(here.service.protocol.claim, waiter, record, passing=False) is not None
        here.live(0.3)
        assert tenure._conflict.startswith("GET /next")

    def test_dead_waiters_are_passed(self, here: Here, tenure: HeldLock) -> None:
        here.store.come_back()
        other = here.service.acquire("ann")
        dead_waiter(here.service, "ann")
        here.service.release(other)
        here.live(1.1)
        assert (tenure.degraded, tenure._conflict) == (False, "")
        assert len(here.of(Confirmed)) == 1

    def test_with_a_heartbeat_it_ends_with_the_lease_and_says_so(
        self, here: Here, scope: LockScope
    ) -> None:
        here.store.go_down(sent=False)
        tenure = scope.acquire("ann", heartbeat=True)
        here.store.come_back()
        here.service.acquire("ann")
        here.live(9.9)
        assert tenure._conflict
        assert here.of(LeaseLost) == []
        here.live(0.2)
        assert tenure.lost == (
            "its lease of 10 s ran out; it was taken while the lease store did not answer, and "
            "was another's"
        )
        assert len(here.of(LeaseLost)) == 1


class TestStillDown:
    @pytest.mark.parametrize("entries", [[True], [False, True], [True, True]])
    def test_a_heartbeat_goes_on_as_the_lock_began(
        self, here: Here, scope: LockScope, entries: list[bool]
    ) -> None:
        here.store.go_down()
        for heartbeat in entries:
            tenure = scope.acquire("ann", lock_timeout=10, heartbeat=heartbeat)
        here.live(300)
        assert tenure.degraded
        assert not tenure._ran_out
        assert not tenure.lost

    def test_it_is_extended_by_hand_as_it_began(self, here: Here, tenure: HeldLock) -> None:
        here.live(30)
        tenure.extend(100)
        assert tenure.expires_in == 100
        here.store.come_back()
        tenure.extend(50)
        assert tenure.expires_in == 50
        assert not tenure.lost
        here.live(1)
        assert not tenure.degraded
        tenure.extend(20)
        here.clock.advance(19)
        assert not record_of(here.store, "ann").lapsed


class TestNothingIsLeftBehind:
    """A release sends nothing to a store that was never asked, unless it was asked meanwhile."""

    @pytest.mark.parametrize("verb", ["create", "read", "swap"])
    def test_by_a_confirmation_that_is_on_its_way(
        self, here: Here, tenure: HeldLock, verb: str
    ) -> None:
        here.store.come_back()
        if verb != "create":  # a record left by another client
            here.service.acquire("ann", lock_timeout=0.001)
            here.clock.advance(0.01)
        here.store.before(verb, lambda: tenure.release())  # type: ignore[arg-type]
        here.live(1)
        assert not tenure.held
        assert here.store.read("ann") is None
        assert here.of(Confirmed) == []

    @pytest.mark.parametrize(
        ("how", "release"),
        [
            ("lose_reply", "later"),
            ("lose_reply", "meanwhile"),
            ("delay", "later"),
            ("delay", "meanwhile"),
        ],
    )
    def test_by_one_with_an_unknown_outcome(
        self, here: Here, tenure: HeldLock, how: str, release: str
    ) -> None:
        here.store.come_back()
        getattr(here.store, how)("create")
        if release == "meanwhile":
            here.store.before("create", lambda: tenure.release())
        else:
            here.store.before("create", lambda: here.clock.after(0.01, here.store.go_down))
        here.live(1)
        if release == "later":
            tenure.release()
            here.store.come_back()
        here.store.arrive()
        for _ in range(3):
            here.service.release(here.service.acquire("bob"))  # the store answers this process
            here.clock.advance(1.1)
        assert here.store.read("ann") is None


def test_its_members_are_few(service: LockService) -> None:
    userlock.configure(service=service)
    with userlock.global_lock("ann") as lock:
        members = {name for name in dir(lock) if not name.startswith("_")}
    assert members == {
        *("lock_id", "held", "fence", "expires_in", "lost", "degraded"),
        *("extend", "yield_to_waiters", "release"),
    }
