"""Time that passes with a heart that beats in it."""

from __future__ import annotations

from userlock import LockService
from userlock.testing import ManualClock


def live(service: LockService, clock: ManualClock, seconds: float) -> None:
    """Let time pass, and all that is due in it be done, each at its time."""
    end = clock.now() + seconds
    while (due := service.heart.beat()) is not None and due <= end:
        clock.advance(due - clock.now())
    clock.advance(end - clock.now())
    service.heart.beat()
