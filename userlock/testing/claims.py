"""Make claims for tests of code above a store."""

from __future__ import annotations

import time

from userlock.lock.lease import Claim, Holder, Priority, new_token, process_label


def make_claim(
    lock_id: str = "learner-1",
    *,
    ttl_seconds: float = 60.0,
    priority: Priority = Priority.INTERACTIVE,
    request: str = "GET /a-test",
) -> Claim:
    """Return a claim with a token of its own."""
    holder = Holder(
        token=new_token(),
        priority=priority.value,
        since=round(time.time(), 3),
        lock_timeout=ttl_seconds,
        process=process_label(),
        request=request,
    )
    return Claim(lock_id, holder, ttl_seconds, priority)
