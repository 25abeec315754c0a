"""A lost lease: reported with its true reason, once, by the first detection."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

import userlock
from tests.unit.lock.pulse import LEASE, live, losses
from userlock import HeldLock, LockService
from userlock.events import Event
from userlock.lock.scope import LockScope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


def evict(store: MemoryStore, service: LockService) -> None:
    store.evict("ann")


def take(store: MemoryStore, service: LockService) -> None:
    store.evict("ann")
    service.acquire("ann", request="GET /theirs")


def break_(store: MemoryStore, service: LockService) -> None:
    service.break_lock("ann", by="Jo")


def break_and_take(store: MemoryStore, service: LockService) -> None:
    service.break_lock("ann", by="Jo")
    service.acquire("ann", request="GET /theirs", wait_timeout=1)


FORGOTTEN = "its record is gone from the store (evicted, flushed, restarted or broken)"
Accident = Callable[[MemoryStore, LockService], None]


class TestLoss:
    """The reason of a loss is reported at the next renewal."""

    @pytest.mark.parametrize(
        ("accident", "how"),
        [
            (evict, FORGOTTEN),
            (take, f"{FORGOTTEN}; it is now held by GET /theirs (interactive, lease of 60 s"),
            (break_, "it was broken by Jo"),
            (break_and_take, "it was broken by Jo; it is now held by GET /theirs"),
        ],
    )
    def test_by_the_heartbeat_once(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        scope: LockScope,
        events: list[Event],
        caplog: pytest.LogCaptureFixture,
        accident: Accident,
        how: str,
    ) -> None:
        seen: list[str] = []
        tenure.on_lost(lambda tenure: seen.append(tenure.lost))
        live(service, clock, LEASE)
        accident(store, service)
        others = service.holder("ann")
        live(service, clock, LEASE / 3)
        assert tenure.lost.startswith(how)
        assert seen == [tenure.lost]
        assert repr(tenure) == "<HeldLock of 'ann': lost>"
        with caplog.at_level(logging.WARNING):
            live(service, clock, 2 * LEASE)
            scope.release("ann")
        assert [event.how for event in losses(events)] == [tenure.lost]
        assert service.holder("ann") == others, "what is another's is left alone"

    def test_by_an_extension(
        self,
        service: LockService,
        store: MemoryStore,
        tenure: HeldLock,
        scope: LockScope,
        events: list[Event],
    ) -> None:
        service.break_lock("ann", by="Jo")
        for _ in range(2):
            with pytest.raises(userlock.LockNotHeld, match="it is lost: it was broken by Jo"):
                tenure.extend(5)
        scope.release("ann")
        assert [event.how for event in losses(events)] == [tenure.lost]


class TestErrorsOfOthers:
    def test_a_failing_callback_has_no_effect(
        self,
        service: LockService,
        clock: ManualClock,
        store: MemoryStore,
        tenure: HeldLock,
        scope: LockScope,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def fail(tenure: HeldLock) -> None:
            raise RuntimeError("the callback is broken")

        seen: list[HeldLock] = []
        tenure.on_lost(fail)
        tenure.on_lost(seen.append)
        other = scope.acquire("bob", heartbeat=True)
        store.evict("ann")
        live(service, clock, 5 * LEASE)
        assert seen == [tenure]
        assert "the callback is broken" in caplog.text
        assert not other.ran_out
        assert not other.lost

    def test_a_callback_that_is_not_callable_is_refused_at_once(self, tenure: HeldLock) -> None:
        """At once, instead of a log entry some day, from a thread without the caller's context."""
        with pytest.raises(TypeError, match="callback must be callable, not 'print'"):
            tenure.on_lost("print")  # type: ignore[arg-type]

    def test_a_callback_may_do_with_the_lock_what_it_likes(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        def act(tenure: HeldLock) -> None:
            with pytest.raises(userlock.LockNotHeld):
                tenure.extend(5)
            tenure.scope.release("ann")

        tenure.on_lost(act)
        store.evict("ann")
        live(service, clock, LEASE)
        assert not tenure.held

    def test_a_callback_added_during_the_report_or_later_is_called_once(
        self, service: LockService, clock: ManualClock, store: MemoryStore, tenure: HeldLock
    ) -> None:
        seen: list[HeldLock] = []
        tenure.on_lost(lambda tenure: tenure.on_lost(seen.append))
        store.evict("ann")
        live(service, clock, LEASE)
        assert seen == [tenure]
        tenure.on_lost(seen.append)
        assert seen == [tenure] * 2
