"""Waiting for a service to make up for what it could not do."""

from __future__ import annotations

import time
import uuid

import userlock


def tidy_up(service: userlock.LockService) -> None:
    """Return when the service has had an answer again, and has given back what it owed."""
    deadline = time.monotonic() + 5
    while True:
        lease = service.acquire(uuid.uuid4().hex)
        service.release(lease)
        if not lease.degraded:
            return
        assert time.monotonic() < deadline
