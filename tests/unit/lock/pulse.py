"""A lock service over the memory store, its time driven by hand, and what it reports."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from userlock import LockService
from userlock.events import Event, LeaseLost
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

_E = TypeVar("_E", bound=Event)

#: The default length of a lease with a heartbeat, in seconds.
LEASE = 10.0


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def live(service: LockService, clock: ManualClock, seconds: float) -> None:
    """Let time pass, and run each due renewal at its time."""
    end = clock.now() + seconds
    while (due := service.renewals.run_due()) is not None and due <= end:
        clock.advance(due - clock.now())
    clock.advance(end - clock.now())
    service.renewals.run_due()


class Here(NamedTuple):
    """This process: its service, and the service's clock, store and reported events."""

    service: LockService
    clock: ManualClock
    store: MemoryStore
    events: list[Event]

    def live(self, seconds: float) -> None:
        live(self.service, self.clock, seconds)

    def of(self, kind: type[_E]) -> list[_E]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def losses(self) -> list[LeaseLost]:
        return self.of(LeaseLost)
