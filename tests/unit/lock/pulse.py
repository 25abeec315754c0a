"""What tests of heartbeats share: time that passes with a renewal thread that beats in it."""

from __future__ import annotations

from userlock import LockService
from userlock.events import Event, LeaseLost
from userlock.testing import ManualClock

#: How long a lease with a heartbeat is by default, in seconds.
LEASE = 10.0


def live(service: LockService, clock: ManualClock, seconds: float) -> None:
    """Let time pass, and all that is due in it be done, each at its time."""
    end = clock.now() + seconds
    while (due := service.renewals.run_due()) is not None and due <= end:
        clock.advance(due - clock.now())
    clock.advance(end - clock.now())
    service.renewals.run_due()


def told(events: list[Event]) -> list[LeaseLost]:
    """What was said of leases that were lost."""
    return [event for event in events if isinstance(event, LeaseLost)]
