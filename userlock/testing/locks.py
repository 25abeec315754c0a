"""Hold a lock in a test of an application, or do without it; make claims for tests of stores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from userlock.lock.api import global_lock
from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import Claim, Priority, new_claim
from userlock.lock.scope import current_scope, scope
from userlock.lock.service import LockService
from userlock.reports import unlocked_blocks


@contextlib.contextmanager
def held_lock(
    lock_id: str | int, *, service: LockService | None = None, lock_timeout: float | None = None
) -> Iterator[HeldLock]:
    """Hold a user's lock for a block, as the caller of the code under test would.

    For functions that are called directly. A request that the block sends through a test client is
    another request and has to wait.

    Args:
        lock_id: the user.
        service: the lock service if no scope is open; by default the configured one.
        lock_timeout: the length of the lease in seconds; by default as configured.

    Raises:
        LockTimeout: the lock is held already. Nothing waits.
    """
    with contextlib.ExitStack() as stack:
        if current_scope() is None:
            stack.enter_context(scope(service, request="a test"))
        yield stack.enter_context(global_lock(lock_id, wait_timeout=0, lock_timeout=lock_timeout))


@contextlib.contextmanager
def allow_unlocked(reason: str = "a test arranges data") -> Iterator[None]:
    """Check no write inside the block, not even by the application. Writes are still fenced.

    It holds for the thread or asyncio task that has opened the block. Not needed where test code
    itself puts data: that is not checked by default. Also a decorator: `@allow_unlocked()`.

    Args:
        reason: a note for the reader of the test.
    """
    unlocked_blocks.set(unlocked_blocks.get() + 1)
    try:
        yield
    finally:  # by counting: blocks of tasklets may end in any order
        unlocked_blocks.set(unlocked_blocks.get() - 1)


def make_claim(
    lock_id: str = "learner-1",
    *,
    ttl_seconds: float = 60.0,
    priority: Priority = Priority.INTERACTIVE,
    request: str = "GET /a-test",
) -> Claim:
    """Return a claim with a token of its own."""
    return new_claim(lock_id, priority, round(time.time(), 3), ttl_seconds, request)
