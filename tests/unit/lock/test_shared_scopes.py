"""One scope, several threads: each thread releases only its own lock."""

from __future__ import annotations

import userlock
from userlock.lock.store import GRACE_SECONDS
from userlock.testing import ManualClock


def test_a_late_leave_takes_nothing_from_the_next_tenure(
    service: userlock.LockService, clock: ManualClock
) -> None:
    """The lease of one thread has expired, and another thread of the scope holds the lock."""
    with userlock.scope(service) as scope:
        late = scope.acquire("ann", lock_timeout=1)
        clock.advance(1 + GRACE_SECONDS)
        late.owner = (0, 0)  # another thread's
        tenure = scope.acquire("ann")
        scope.leave(late)
        assert scope.held == {"ann": tenure}
    assert service.holder("ann") is None
