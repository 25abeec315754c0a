"""Waiting, priority and outages, over the memory store with time driven by hand."""

from __future__ import annotations

import traceback

import pytest

from tests.unit.lock.pulse import Here, interrupt
from userlock import LockPolicy, LockService, LockServiceUnavailable, LockTimeout, Polling
from userlock.events import (
    Acquired,
    Contended,
    Event,
    Released,
    TimedOut,
)
from userlock.lock.lease import Priority
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def test_a_free_lock_is_taken_at_once(here: Here) -> None:
    lease = here.service.acquire("ann")
    assert here.clock.sleeps == []
    assert lease.deadline == here.clock.now() + 60
    here.service.release(lease)
    assert here.service.holder("ann") is None
    assert [type(event) for event in here.events] == [Acquired, Released]


def test_it_waits_until_the_holder_leaves(here: Here) -> None:
    first = here.service.acquire("ann", request="POST /first")
    here.clock.after(3.0, lambda: here.service.release(first))
    started = here.clock.now()
    second = here.service.acquire("ann", request="POST /second")
    assert 3.0 <= here.clock.now() - started < 3.05
    assert here.service.holder("ann") is not None
    (contended,) = here.of(Contended)
    assert "POST /first" in contended.blocked_by
    acquired = here.of(Acquired)[-1]
    assert "POST /first" in acquired.blocked_by
    assert acquired.attempts == len(here.clock.sleeps) + 2, "the first try, the line, the looks"
    assert acquired.waited_seconds == pytest.approx(3.0, abs=0.05)
    here.service.release(second)


def test_a_timeout_names_the_holder(here: Here) -> None:
    here.service.acquire("ann", request="POST /exercises/7")
    started = here.clock.now()
    with pytest.raises(LockTimeout) as caught:
        here.service.acquire("ann", wait_timeout=0.5)
    assert here.clock.now() - started == pytest.approx(0.5)
    error = caught.value
    assert error.lock_id == "ann"
    assert error.holder is not None
    assert error.holder.request == "POST /exercises/7"
    assert error.waited_seconds == pytest.approx(0.5)
    assert "'ann' was not free after 0.5 s" in str(error)
    assert "POST /exercises/7" in str(error)
    assert isinstance(here.events[-1], TimedOut)


def test_defaults_follow_priority(service: LockService, clock: ManualClock) -> None:
    service.acquire("ann", lock_timeout=1000)
    for priority, wait in ((Priority.INTERACTIVE, 10), (Priority.BATCH, 60)):
        started = clock.now()
        with pytest.raises(LockTimeout):
            service.acquire("ann", priority=priority)
        assert clock.now() - started == pytest.approx(wait)


def test_a_service_needs_a_store() -> None:
    with pytest.raises(TypeError, match=r"use LockService\.from_url"):
        LockService("memory://")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="store must be a LeaseStore, not int"):
        LockService(42)  # type: ignore[arg-type]
    assert isinstance(LockService.from_url("memory://").store, MemoryStore)


def test_the_length_of_leases_can_be_set_for_both_priorities(store: MemoryStore) -> None:
    policy = LockPolicy().with_lock_timeout(7)
    service = LockService(store, clock=store.clock, policy=policy)
    for number, priority in enumerate(Priority):
        lease = service.acquire(f"learner-{number}", priority=priority)
        assert lease.ttl_seconds == 7
    assert policy.batch.polling == LockPolicy().batch.polling


class TestOutage:
    @pytest.mark.parametrize("asked", [True, False])
    def test_a_late_command_of_an_outage_is_cleaned_up(self, here: Here, asked: bool) -> None:
        """Also if the look-up fails before it begins, as on a hanging server."""
        here.store.delay("create")
        here.store.before("read", lambda: here.store.go_down(sent=asked, slow=True))
        lease = here.service.acquire("ann")
        assert lease.degraded
        here.service.release(lease)
        here.store.come_back()
        here.store.arrive()
        assert here.store.read("ann") is not None
        here.service.release(here.service.acquire("bob"))
        assert here.store.read("ann") is None


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupted_acquire_leaves_nothing_behind(
    here: Here, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """A signal handler may raise anything, at any moment: here after the store's grant."""
    create = here.store.create

    def interrupted(lock_id: str, record: bytes, ttl_seconds: float) -> object:
        assert create(lock_id, record, ttl_seconds) is not None
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(here.store, "create", interrupted)
        with pytest.raises(error):
            here.service.acquire("ann")
    assert here.store.read("ann") is None


def test_an_interrupted_release_is_made_up_for(service: LockService, store: MemoryStore) -> None:
    lease = service.acquire("ann")
    store.before("remove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        service.release(lease)
    assert store.read("ann") is not None
    service.release(service.acquire("bob"))
    assert store.read("ann") is None


def test_an_interrupt_during_pending_releases_keeps_nothing(here: Here) -> None:
    """And no pending release is forgotten."""
    lease = here.service.acquire("ann")
    here.store.go_down("connection refused")
    here.service.release(lease)
    here.store.come_back()
    here.store.before("remove", interrupt)
    with pytest.raises(KeyboardInterrupt):
        here.service.acquire("bob")
    assert here.store.read("bob") is None
    here.clock.advance(1)
    here.service.release(here.service.acquire("cem"))
    assert here.store.read("ann") is None


def test_an_interrupt_during_the_report_keeps_nothing(here: Here) -> None:
    here.service.listeners.add(interrupt)
    with pytest.raises(KeyboardInterrupt):
        here.service.acquire("ann")
    assert here.store.read("ann") is None


@pytest.mark.parametrize("least", [0, -1, 2])
def test_polling_that_would_spin_is_refused(least: float) -> None:
    with pytest.raises(ValueError, match="least_seconds"):
        Polling(least_seconds=least, most_seconds=1)


def test_a_failing_listener_breaks_nothing(
    service: LockService, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Event) -> None:
        raise RuntimeError("listener is broken")

    service.listeners.add(broken)
    service.release(service.acquire("ann"))
    assert "listener is broken" in caplog.text


def test_the_error_of_an_outage_has_a_note_instead_of_a_chain() -> None:
    service = LockService.from_url("memcache://127.0.0.1:1", outage="fail")
    with pytest.raises(LockServiceUnavailable) as caught:
        service.acquire("ann")
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1
    assert shown.endswith(
        "(memcached at 127.0.0.1:1: [Errno 111] Connection refused)\n"
        "The store's client raised ConnectionRefusedError.\n"
    )
