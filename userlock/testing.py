"""For tests: a clock driven by hand, and the contract that every lease store keeps.

`LeaseStoreContract` is a class of pytest tests. A store's own test module
subclasses it and says how to make one:

    class TestMyStore(LeaseStoreContract):
        @pytest.fixture
        def store(self): return MyStore(…)
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

import pytest

from userlock.lock.lease import (
    Claim,
    Free,
    Granted,
    Held,
    Holder,
    Lease,
    LeaseStore,
    Lost,
    Priority,
    Released,
    Yielded,
    new_token,
    process_label,
)


class ManualClock:
    """A clock that moves only when it is told to, or slept on.

    `sleep` moves time at once and carries out, on the way, what `at` has put
    down for the times that pass.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._wall = 1_700_000_000.0
        self._plans: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        #: Every sleep that was asked for, in seconds.
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass, and what was planned for it happen."""
        target = self._now + seconds
        while self._plans and self._plans[0][0] <= target:
            when, _, action = heapq.heappop(self._plans)
            self._now = max(self._now, when)
            action()
        self._now = max(self._now, target)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Plan `action` for when that much time has passed."""
        heapq.heappush(self._plans, (self._now + seconds, next(self._order), action))


def make_claim(
    lock_id: str = "learner-1",
    *,
    ttl_seconds: float = 60.0,
    priority: Priority = Priority.INTERACTIVE,
    request: str = "GET /a-test",
) -> Claim:
    """A claim with a token of its own."""
    holder = Holder(
        token=new_token(),
        priority=priority.value,
        since=round(time.time(), 3),
        lock_timeout=ttl_seconds,
        process=process_label(),
        request=request,
    )
    return Claim(lock_id=lock_id, holder=holder, ttl_seconds=ttl_seconds, priority=priority)


def granted(outcome: object) -> Lease:
    """The lease of an outcome that must be a grant."""
    assert isinstance(outcome, Granted), outcome
    return outcome.lease


class LeaseStoreContract:
    """What every lease store must do, whatever it is made of.

    Subclasses give a `store` fixture, and may override `wait_for_expiry` when
    time can be moved by hand.
    """

    def wait_for_expiry(self, store: LeaseStore, lock_id: str) -> None:
        """Return when a lease of one second has ended in the store."""
        deadline = time.monotonic() + 10
        while not isinstance(store.read(lock_id), Free):
            assert time.monotonic() < deadline, "the lease did not end"
            threading.Event().wait(0.05)

    @pytest.fixture(params=["learner-1", "ü 漢字 🔒", " ", "a\r\nb", "x" * 10_000, "\ud800"])
    def lock_id(self, request: pytest.FixtureRequest) -> str:
        """Lock ids as they may come."""
        lock_id: str = request.param
        return lock_id

    def test_a_free_lock_is_granted(self, store: LeaseStore, lock_id: str) -> None:
        claim = make_claim(lock_id)
        lease = granted(store.add(claim))
        assert (lease.lock_id, lease.token, lease.degraded) == (lock_id, claim.token, False)
        assert store.read(lock_id) == Held(claim.holder)

    def test_a_held_lock_is_not_granted(self, store: LeaseStore, lock_id: str) -> None:
        first = make_claim(lock_id)
        granted(store.add(first))
        assert isinstance(store.add(make_claim(lock_id)), Held)
        assert store.read(lock_id) == Held(first.holder)

    def test_different_locks_do_not_meet(self, store: LeaseStore) -> None:
        for lock_id in ("a", "a ", "A", "lock=a", "x" * 1000, "x" * 1001):
            granted(store.add(make_claim(lock_id)))

    def test_release_frees_the_lock(self, store: LeaseStore, lock_id: str) -> None:
        lease = granted(store.add(make_claim(lock_id)))
        assert store.release(lease) == Released()
        assert store.read(lock_id) == Free()
        granted(store.add(make_claim(lock_id)))

    def test_release_of_a_released_lease_is_lost(self, store: LeaseStore) -> None:
        lease = granted(store.add(make_claim()))
        store.release(lease)
        assert store.release(lease) == Lost(None)

    def test_release_never_frees_the_next_owner(self, store: LeaseStore) -> None:
        first = granted(store.add(make_claim()))
        store.release(first)
        second = make_claim()
        granted(store.add(second))
        assert store.release(first) == Lost(second.holder)
        assert store.read("learner-1") == Held(second.holder)

    def test_extend_gives_a_new_lease(self, store: LeaseStore, lock_id: str) -> None:
        lease = granted(store.add(make_claim(lock_id, ttl_seconds=5)))
        longer = granted(store.extend(lease, 50))
        assert longer.deadline > lease.deadline + 40
        assert longer.token == lease.token
        assert store.release(longer) == Released()

    def test_release_of_the_lease_as_it_was_before_extending(self, store: LeaseStore) -> None:
        lease = granted(store.add(make_claim()))
        granted(store.extend(lease, 50))
        assert store.release(lease) == Released()
        assert store.read(lease.lock_id) == Free()

    def test_extend_of_a_lost_lease_is_lost(self, store: LeaseStore) -> None:
        first = granted(store.add(make_claim()))
        store.release(first)
        assert store.extend(first, 50) == Lost(None)
        second = make_claim()
        granted(store.add(second))
        assert store.extend(first, 50) == Lost(second.holder)

    def test_a_lease_ends_by_itself(self, store: LeaseStore) -> None:
        lease = granted(store.add(make_claim(ttl_seconds=1)))
        self.wait_for_expiry(store, "learner-1")
        second = make_claim()
        granted(store.add(second))
        assert store.release(lease) == Lost(second.holder)
        assert store.read("learner-1") == Held(second.holder)

    def test_batch_stands_back_for_a_waiting_person(self, store: LeaseStore) -> None:
        holder = granted(store.add(make_claim()))
        person = make_claim()
        assert isinstance(store.add(person, announce=True), Held)
        store.release(holder)
        assert store.add(make_claim(priority=Priority.BATCH)) == Yielded()
        lease = granted(store.add(person, announce=True))
        store.withdraw(person)
        store.release(lease)
        granted(store.add(make_claim(priority=Priority.BATCH)))

    def test_batch_that_meets_nobody_is_granted(self, store: LeaseStore) -> None:
        granted(store.add(make_claim(priority=Priority.BATCH)))

    def test_withdraw_leaves_another_waiter_announced(self, store: LeaseStore) -> None:
        granted(store.add(make_claim()))
        first, second = make_claim(), make_claim()
        store.add(first, announce=True)
        store.add(second, announce=True)
        store.withdraw(first)
        assert store.add(make_claim(priority=Priority.BATCH)) == Yielded()

    def test_one_of_many_threads_is_granted(self, store: LeaseStore) -> None:
        barrier = threading.Barrier(8)
        outcomes: list[object] = []

        def ask() -> None:
            claim = make_claim()
            barrier.wait()
            outcomes.append(store.add(claim))

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [type(outcome) for outcome in outcomes].count(Granted) == 1
        assert [type(outcome) for outcome in outcomes].count(Held) == 7
