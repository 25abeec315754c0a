"""Waiting, priority and outages, over the memory store with time driven by hand."""

from __future__ import annotations

import logging
from random import Random

import pytest

from userlock import Backoff, LockPolicy, LockService, LockServiceUnavailable, LockTimeout
from userlock.events import (
    Acquired,
    Contended,
    Degraded,
    Event,
    LeaseLost,
    Listeners,
    Released,
    TimedOut,
    log_event,
)
from userlock.lock.lease import Claim, Free, Granted, Held, Lost
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def service(store: MemoryStore, clock: ManualClock, events: list[Event]) -> LockService:
    return LockService(
        store, clock=clock, random=Random(1), listeners=Listeners([events.append, log_event])
    )


def test_a_free_lock_is_taken_at_once(
    service: LockService, clock: ManualClock, events: list[Event]
) -> None:
    lease = service.acquire("ann")
    assert clock.sleeps == []
    assert lease.deadline == clock.now() + 60
    service.release(lease)
    assert service.holder("ann") is None
    assert [type(event) for event in events] == [Acquired, Released]


def test_it_waits_until_the_holder_leaves(
    service: LockService, clock: ManualClock, events: list[Event]
) -> None:
    first = service.acquire("ann", request="POST /first")
    clock.after(3.0, lambda: service.release(first))
    started = clock.now()
    second = service.acquire("ann", request="POST /second")
    assert 3.0 <= clock.now() - started < 3.05
    assert service.holder("ann") is not None
    contended = next(event for event in events if isinstance(event, Contended))
    assert "POST /first" in contended.in_the_way
    acquired = [event for event in events if isinstance(event, Acquired)][-1]
    assert "POST /first" in acquired.in_the_way
    assert acquired.waited_seconds == pytest.approx(3.0, abs=0.05)
    service.release(second)


def test_polls_begin_quickly_and_grow_slower_with_jitter(
    service: LockService, clock: ManualClock
) -> None:
    service.acquire("ann")
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=2)
    assert clock.sleeps[0] <= 0.002
    settled = clock.sleeps[15:-1]
    assert all(0.0125 <= delay <= 0.025 for delay in settled)
    assert len(set(settled)) > len(settled) / 2


def test_a_timeout_names_the_holder(
    service: LockService, clock: ManualClock, events: list[Event]
) -> None:
    service.acquire("ann", request="POST /exercises/7")
    started = clock.now()
    with pytest.raises(LockTimeout) as caught:
        service.acquire("ann", wait_timeout=0.5)
    assert clock.now() - started == pytest.approx(0.5)
    error = caught.value
    assert error.lock_id == "ann"
    assert error.holder is not None
    assert error.holder.request == "POST /exercises/7"
    assert error.waited_seconds == pytest.approx(0.5)
    assert "'ann' was not free after 0.5 s" in str(error)
    assert "POST /exercises/7" in str(error)
    assert isinstance(events[-1], TimedOut)


def test_a_wait_of_zero_tries_once(service: LockService, clock: ManualClock) -> None:
    service.acquire("ann")
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=0)
    assert clock.sleeps == []


def test_a_lease_that_ran_out_frees_the_lock(
    service: LockService, clock: ManualClock, events: list[Event]
) -> None:
    first = service.acquire("ann", lock_timeout=2)
    second = service.acquire("ann", wait_timeout=5, request="POST /next")
    service.release(first, held_seconds=2.5)
    assert service.holder("ann") is not None, "the late release must not free the next owner"
    lost = events[-1]
    assert isinstance(lost, LeaseLost)
    assert "lease of 2 s ran out" in lost.how
    assert "POST /next" in lost.how
    service.release(second)


def test_an_evicted_lease_is_reported_as_such(
    service: LockService, store: MemoryStore, events: list[Event]
) -> None:
    lease = service.acquire("ann")
    store.evict("ann")
    service.release(lease)
    lost = events[-1]
    assert isinstance(lost, LeaseLost)
    assert "evicted" in lost.how


def test_batch_does_not_wait_when_it_meets_nobody(service: LockService, clock: ManualClock) -> None:
    for number in range(100):
        service.release(service.acquire(f"learner-{number}", priority="batch"))
    assert clock.sleeps == []


def test_batch_lets_a_waiting_person_pass(service: LockService, clock: ManualClock) -> None:
    """Both wait; batch came first; the person goes first."""
    holder = service.acquire("ann")
    order: list[str] = []

    def person_comes() -> None:
        clock.after(1.0, lambda: service.release(holder))
        lease = service.acquire("ann", request="person")
        order.append("person")
        service.release(lease)

    clock.after(0.5, person_comes)
    lease = service.acquire("ann", priority="batch")
    order.append("batch")
    service.release(lease)
    assert order == ["person", "batch"]


def test_without_the_announcement_batch_would_pass(
    service: LockService, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the rule: batch takes what a person waits for."""
    add = store.add
    monkeypatch.setattr(store, "add", lambda claim, *, announce=False: add(claim))
    holder = service.acquire("ann")
    taken_by_batch: list[object] = []

    def batch_takes_it_first() -> None:
        service.release(holder)
        taken_by_batch.append(service.acquire("ann", priority="batch", wait_timeout=0))

    clock.after(0.5, batch_takes_it_first)
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=2)
    assert taken_by_batch


def test_a_waiter_that_gave_up_does_not_hold_batch_back(
    service: LockService, clock: ManualClock
) -> None:
    holder = service.acquire("ann")
    with pytest.raises(LockTimeout):
        service.acquire("ann", wait_timeout=0.1)
    service.release(holder)
    clock.sleeps.clear()
    service.acquire("ann", priority="batch")
    assert clock.sleeps == []


def test_defaults_follow_priority(service: LockService, clock: ManualClock) -> None:
    service.acquire("ann", lock_timeout=1000)
    for priority, wait in (("interactive", 10), ("batch", 60)):
        started = clock.now()
        with pytest.raises(LockTimeout):
            service.acquire("ann", priority=priority)
        assert clock.now() - started == pytest.approx(wait)


def test_the_length_of_leases_can_be_set_for_both_priorities(store: MemoryStore) -> None:
    policy = LockPolicy().with_lock_timeout(7)
    service = LockService(store, clock=store.clock, policy=policy)
    for number, priority in enumerate(("interactive", "batch")):
        lease = service.acquire(f"learner-{number}", priority=priority)
        assert lease.ttl_seconds == 7
    assert policy.batch.backoff == LockPolicy().batch.backoff


class TestOutage:
    def test_optimistic_carries_on_with_a_degraded_lease(
        self,
        service: LockService,
        store: MemoryStore,
        events: list[Event],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        store.go_down("connection refused")
        with caplog.at_level(logging.WARNING):
            lease = service.acquire("ann")
        assert lease.degraded
        assert any(isinstance(event, Degraded) for event in events)
        assert "connection refused" in caplog.text
        service.release(lease)

    def test_fail_raises(self, store: MemoryStore, clock: ManualClock) -> None:
        service = LockService(store, clock=clock, outage="fail")
        store.go_down("connection refused")
        with pytest.raises(LockServiceUnavailable, match="connection refused") as caught:
            service.acquire("ann")
        assert caught.value.lock_id == "ann"

    def test_a_store_that_dies_while_waiting_ends_the_wait(
        self, service: LockService, store: MemoryStore, clock: ManualClock
    ) -> None:
        service.acquire("ann")
        clock.after(1.0, store.go_down)
        started = clock.now()
        assert service.acquire("ann").degraded
        assert clock.now() - started < 1.1

    def test_a_lease_that_could_not_be_given_back_is_given_back_later(
        self, service: LockService, store: MemoryStore
    ) -> None:
        lease = service.acquire("ann")
        store.go_down()
        service.release(lease)
        store.come_back()
        assert isinstance(store.read("ann"), Held)
        service.release(service.acquire("bob"))  # the store answers this process again
        assert store.read("ann") == Free()

    def test_a_late_command_of_an_outage_is_cleaned_up(
        self, service: LockService, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The add is carried out after the caller had given up on it."""
        add = store.add

        def carried_out_late(claim: object, *, announce: bool = False) -> object:
            store.come_back()
            assert isinstance(add(claim), Granted)  # type: ignore[arg-type]
            store.go_down()
            return add(claim)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(store, "add", carried_out_late)
            lease = service.acquire("ann")
        assert lease.degraded
        service.release(lease)
        store.come_back()
        assert isinstance(store.read("ann"), Held)
        service.release(service.acquire("bob"))
        assert store.read("ann") == Free()

    def test_a_slow_failure_is_paid_once(
        self,
        service: LockService,
        store: MemoryStore,
        clock: ManualClock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        calls: list[float] = []
        add = store.add

        def slow(claim: object, *, announce: bool = False) -> object:
            calls.append(clock.now())
            clock.advance(0.4)
            return add(claim)  # type: ignore[arg-type]

        store.go_down("timed out")
        monkeypatch.setattr(store, "add", slow)
        started = clock.now()
        for _ in range(100):
            assert service.acquire("ann").degraded
        assert len(calls) == 1
        assert clock.now() - started == pytest.approx(0.4)
        clock.advance(1.1)
        store.come_back()
        assert not service.acquire("ann").degraded


def test_extend(service: LockService, store: MemoryStore, clock: ManualClock) -> None:
    lease = service.acquire("ann", lock_timeout=5)
    clock.advance(4)
    outcome = service.extend(lease, 5)
    assert isinstance(outcome, Granted)
    assert outcome.lease.deadline == clock.now() + 5
    clock.advance(6)
    assert service.extend(outcome.lease, 5) == Lost(None)


def test_a_thread_that_is_stopped_while_waiting_leaves_nothing_behind(
    service: LockService, store: MemoryStore, clock: ManualClock
) -> None:
    holder = service.acquire("ann")

    def stop() -> None:
        raise KeyboardInterrupt

    clock.after(1.0, stop)
    with pytest.raises(KeyboardInterrupt):
        service.acquire("ann")
    service.release(holder)
    assert store.read("ann") == Free()
    clock.sleeps.clear()
    service.acquire("ann", priority="batch")
    assert clock.sleeps == [], "the stopped waiter must not be announced any more"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_acquire_leaves_nothing_behind(
    service: LockService,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    """A signal handler may raise anything, at any moment: here after the store has granted."""
    add = store.add

    def interrupted(claim: Claim, *, announce: bool = False) -> object:
        assert isinstance(add(claim, announce=announce), Granted)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(store, "add", interrupted)
        with pytest.raises(error):
            service.acquire("ann")
    assert store.read("ann") == Free()


def test_an_interrupted_release_is_made_up_for(
    service: LockService, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(lease: object) -> object:
        raise KeyboardInterrupt

    lease = service.acquire("ann")
    with monkeypatch.context() as patch:
        patch.setattr(store, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            service.release(lease)
    assert isinstance(store.read("ann"), Held)
    service.release(service.acquire("bob"))
    assert store.read("ann") == Free()


def test_a_back_off_that_would_spin_is_refused() -> None:
    with pytest.raises(ValueError, match="first_seconds"):
        Backoff(first_seconds=0, most_seconds=0)


def test_a_failing_listener_breaks_nothing(
    service: LockService, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("listener is broken")

    service.listeners.add(broken)
    service.release(service.acquire("ann"))
    assert "listener is broken" in caplog.text
