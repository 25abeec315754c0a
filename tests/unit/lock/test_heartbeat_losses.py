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
        live(service, clock, LEASE)
        accident(store, service)
        others = service.holder("ann")
        live(service, clock, LEASE / 3)
        assert tenure.lost.startswith(how)
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
