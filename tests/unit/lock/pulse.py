"""Helpers of the tests of heartbeats: time that passes while the renewal thread runs."""

from __future__ import annotations

from userlock import LockService
from userlock.events import Event, LeaseLost
from userlock.testing import ManualClock

#: The default length of a lease with a heartbeat, in seconds.
LEASE = 10.0


def live(service: LockService, clock: ManualClock, seconds: float) -> None:
    """Let time pass, and run each due renewal at its time."""
    end = clock.now() + seconds
    while (due := service.renewals.run_due()) is not None and due <= end:
        clock.advance(due - clock.now())
    clock.advance(end - clock.now())
    service.renewals.run_due()


def losses(events: list[Event]) -> list[LeaseLost]:
    """Return the reported losses of leases."""
    return [event for event in events if isinstance(event, LeaseLost)]
