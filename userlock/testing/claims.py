"""Make claims for tests of code above a store."""

from __future__ import annotations

import time

from userlock.lock.lease import Claim, Priority, new_claim


def make_claim(
    lock_id: str = "learner-1",
    *,
    ttl_seconds: float = 60.0,
    priority: Priority = Priority.INTERACTIVE,
    request: str = "GET /a-test",
) -> Claim:
    """Return a claim with a token of its own."""
    return new_claim(lock_id, priority, round(time.time(), 3), ttl_seconds, request)
