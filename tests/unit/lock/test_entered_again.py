"""A lock whose lease is over is not entered again without the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import userlock
from tests.leases import existing
from userlock.events import Event, LeaseLost
from userlock.lock.configuration import default_service
from userlock.lock.scope import current_scope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("configured")

Enter = Callable[[], userlock.HeldLock]


def by_with() -> userlock.HeldLock:
    with userlock.global_lock("ann", wait_timeout=0) as lock:
        return lock


def by_acquire_lock() -> userlock.HeldLock:
    lock = userlock.acquire_lock("ann", wait_timeout=0).tenure
    userlock.release_lock("ann")
    return lock


def by_decorator() -> userlock.HeldLock:
    @userlock.global_lock("ann", wait_timeout=0)
    def held() -> userlock.HeldLock:
        return existing(current_scope()).held["ann"]

    return held()


def by_several() -> userlock.HeldLock:
    with userlock.global_locks(["ann", "bob"], wait_timeout=0) as (lock, _):
        return lock


def run_out(clock: ManualClock, elsewhere: userlock.LockService) -> None:
    clock.advance(11)


def lost(clock: ManualClock, elsewhere: userlock.LockService) -> None:
    elsewhere.break_lock("ann", by="carol")
    clock.advance(5)
    default_service().renewals.run_due()


WAYS = [by_with, by_acquire_lock, by_decorator, by_several]
ends = pytest.mark.parametrize(("end", "heartbeat"), [(run_out, False), (lost, True)])


@pytest.mark.parametrize(
    ("enter", "end", "heartbeat"),
    [*((each, run_out, False) for each in WAYS), (by_with, lost, True)],
)
def test_another_holder_keeps_us_out(
    enter: Enter,
    end: Callable[[ManualClock, userlock.LockService], None],
    heartbeat: bool,
    clock: ManualClock,
    elsewhere: userlock.LockService,
) -> None:
    with (
        userlock.scope(),
        userlock.global_lock("ann", lock_timeout=10, heartbeat=heartbeat),
    ):
        end(clock, elsewhere)
        theirs = elsewhere.acquire("ann")
        with pytest.raises(userlock.LockTimeout):
            enter()
    assert elsewhere.holder("ann") is not None, "leaving released the lock of another holder"
    elsewhere.release(theirs)


@ends
def test_a_free_lock_is_taken_anew_and_the_block_around_keeps_its_own(
    end: Callable[[ManualClock, userlock.LockService], None],
    heartbeat: bool,
    clock: ManualClock,
    elsewhere: userlock.LockService,
    events: list[Event],
) -> None:
    with userlock.scope() as scope:
        with userlock.global_lock("ann", lock_timeout=10, heartbeat=heartbeat) as outer:
            end(clock, elsewhere)
            inner = by_with()
            assert inner is not outer
            assert inner._lease.token != outer._lease.token
            assert (inner.held, outer.held) == (False, True)
            assert scope.held["ann"] is outer, "writes are judged by the block that is left"
            assert elsewhere.holder("ann") is None
        assert not scope.held
    assert [event.lock_id for event in events if isinstance(event, LeaseLost)] == ["ann"]


@pytest.mark.parametrize("enter", WAYS)
def test_a_lease_that_runs_is_entered_again(enter: Enter, clock: ManualClock) -> None:
    """The negative control."""
    with userlock.scope(), userlock.global_lock("ann", lock_timeout=10) as outer:
        clock.advance(9)
        assert enter() is outer
        assert outer.held


def test_a_degraded_lease_counts_by_its_deadline(clock: ManualClock, store: MemoryStore) -> None:
    store.go_down()
    with userlock.scope():
        outer = userlock.acquire_lock("ann", lock_timeout=10).tenure
        clock.advance(9)
        assert userlock.acquire_lock("ann").tenure is outer
        clock.advance(2)
        store.come_back()
        inner = userlock.acquire_lock("ann").tenure
        assert (outer.degraded, inner.degraded) == (True, False)


def test_every_entry_is_left_by_itself(clock: ManualClock, elsewhere: userlock.LockService) -> None:
    with userlock.scope() as scope:
        outer = userlock.acquire_lock("ann", lock_timeout=10).tenure
        clock.advance(11)
        inner = userlock.acquire_lock("ann", lock_timeout=10).tenure
        scope._leave_once(outer)
        assert (outer.held, inner.held) == (False, True)
        assert scope.held["ann"] is inner
        assert existing(elsewhere.holder("ann")).token == inner._lease.token
        userlock.release_lock("ann")
        assert not scope.held
        with pytest.raises(userlock.LockNotHeld):
            userlock.release_lock("ann")


def test_the_new_tenure_can_be_yielded(
    clock: ManualClock, elsewhere: userlock.LockService, store: MemoryStore
) -> None:
    with userlock.scope() as scope, userlock.global_lock("ann", lock_timeout=10) as outer:
        clock.advance(11)
        with userlock.global_lock("ann", lock_timeout=10) as inner:
            store.append("ann", b"\n+i 0123456789abcdef01234567f 0 []")
            yielded = inner.yield_to_waiters(wait_timeout=5)
            assert yielded is not inner
            assert scope.held["ann"] is yielded
        assert scope.held["ann"] is outer
    assert elsewhere.holder("ann") is None


async def test_a_task_asks_the_store_as_well(
    clock: ManualClock, elsewhere: userlock.LockService
) -> None:
    async with userlock.global_lock("ann", lock_timeout=10) as outer:
        async with userlock.global_lock("ann") as inner:
            assert inner is outer
        clock.advance(11)
        async with userlock.global_lock("ann") as inner:
            assert inner is not outer
        theirs = elsewhere.acquire("ann")
        with pytest.raises(userlock.LockTimeout):
            await userlock.global_lock("ann", wait_timeout=0).__aenter__()
        elsewhere.release(theirs)


class SlowStore(MemoryStore):
    """Keeps a record for a second longer than asked for, as stores may."""

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        return super().create(lock_id, record, ttl_seconds + 1)


def test_its_own_record_is_waited_for_and_no_deadlock(clock: ManualClock) -> None:
    service = userlock.LockService(SlowStore(clock=clock, wakes=False), clock=clock)
    with userlock.scope(service), userlock.global_lock("ann", lock_timeout=10) as outer:
        clock.advance(10.5)
        with userlock.global_lock("ann", wait_timeout=5) as inner:
            assert inner is not outer
            assert clock.now() >= 11
