"""`lock.fence`: numbers that grow with every grant."""

from __future__ import annotations

import pytest

import userlock
from tests.unit.lock.pulse import Here
from userlock import LockService, LockServiceUnavailable
from userlock.errors import ConfigurationError, LockNotHeld
from userlock.lock.scope import LockScope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


def test_it_stays_while_the_lock_is_held(scope: LockScope, here: Here) -> None:
    lock = scope.acquire("ann", heartbeat=True)
    number = lock.fence
    before = here.store.asked["append"]
    lock.extend(60)
    assert scope.acquire("ann").fence == number
    assert here.store.asked["append"] == before, "asked for once"
    scope.release("ann")
    scope.release("ann")
    assert here.store.read("ann") is None


def test_others_that_wait_are_still_served(
    scope: LockScope, here: Here, elsewhere: LockService
) -> None:
    lock = scope.acquire("ann")

    def use_and_release() -> None:
        assert lock.fence
        scope.release("ann")

    here.clock.after(0.2, use_and_release)
    elsewhere.release(elsewhere.acquire("ann"))
    assert here.store.read("ann") is None


def test_a_holder_after_it_has_a_higher_one(here: Here, elsewhere: LockService) -> None:
    with userlock.scope(here.service) as paused, userlock.scope(elsewhere) as later:
        first = paused.acquire("ann").fence
        here.clock.advance(61)
        assert later.acquire("ann").fence > first


def test_a_holder_that_asks_too_late_gets_none(here: Here) -> None:
    with userlock.scope(here.service) as scope:
        lock = scope.acquire("ann")
        here.store.evict("ann")
        assert here.store.create("ann", make_claim("ann").record, 60) is not None
        with pytest.raises(LockNotHeld, match="lock 'ann' has no fence: it is lost"):
            _ = lock.fence
        assert lock.lost


def test_not_after_its_end(scope: LockScope, clock: ManualClock) -> None:
    lock = scope.acquire("ann")
    clock.advance(61)
    with pytest.raises(LockNotHeld, match="ran out"):
        _ = lock.fence
    other = scope.acquire("bob")
    scope.release("bob")
    with pytest.raises(LockNotHeld, match="has been released"):
        _ = other.fence


def test_a_degraded_lock_has_none_until_it_is_confirmed(scope: LockScope, here: Here) -> None:
    here.store.go_down("connection refused", sent=False)
    lock = scope.acquire("ann")
    with pytest.raises(LockServiceUnavailable, match="no fence yet"):
        _ = lock.fence
    here.store.come_back()
    here.clock.advance(1)
    here.service.renewals.run_due()
    assert lock.fence > 0


def test_the_store_does_not_answer(scope: LockScope, store: MemoryStore) -> None:
    lock = scope.acquire("ann")
    store.go_down("connection refused", sent=False)
    with pytest.raises(LockServiceUnavailable, match="connection refused"):
        _ = lock.fence
    store.come_back()
    assert lock.fence


@pytest.mark.parametrize("slow", [True, False])
def test_the_reply_is_lost(scope: LockScope, here: Here, slow: bool) -> None:
    lock = scope.acquire("ann")
    here.store.lose_reply("append", slow=slow)
    if slow:
        with pytest.raises(LockServiceUnavailable):
            _ = lock.fence
        here.clock.advance(2)
    number = lock.fence
    scope.release("ann")
    assert scope.acquire("ann").fence > number


def test_a_store_without_numbers_says_so(
    scope: LockScope, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "fences", False)
    lock = scope.acquire("ann")
    with pytest.raises(ConfigurationError, match="MemoryStore gives no numbers"):
        _ = lock.fence


def test_a_record_without_room_gives_none(scope: LockScope, store: MemoryStore) -> None:
    """The number would be the one of before."""
    lock = scope.acquire("ann")
    store.room = 1
    with pytest.raises(LockServiceUnavailable, match="takes no change for a fence"):
        _ = lock.fence
    store.room = 10_000
    assert lock.fence
