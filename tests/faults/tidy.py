"""Waiting for the pending releases of a service."""

from __future__ import annotations

import time
import uuid

import userlock


def tidy_up(service: userlock.LockService) -> None:
    """Return when the service has had a reply again, and has sent its pending releases."""
    deadline = time.monotonic() + 5
    while True:
        lease = service.acquire(uuid.uuid4().hex)
        service.release(lease)
        if not lease.degraded:
            return
        assert time.monotonic() < deadline
