"""Another lock service that stands in while the store does not answer.

The service that was asked speaks for both: a lock that was asked for once is
told of once, to its listeners, whoever has granted it.

    the caller          the service asked           the one that stands in
    acquire ──────────▶ (no answer)
                        ask ──────────────────────▶ its store
                        Contended ◀──────────────── somebody has it
                                  ◀──────────────── a lease
    a lease ◀────────── Degraded, Acquired
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from userlock.errors import LockServiceUnavailable
from userlock.events import Acquired, Degraded, Event, Listeners, Unavailable
from userlock.lock.lease import Claim, Lease

if TYPE_CHECKING:
    from userlock.lock.service import LockService


class FallbackClaim:
    """One lock that is asked for in the fallback store.

    Args:
        fallback: the service to ask. Its own listeners are told nothing.
        listeners: those of the service that was asked first.

    Attributes:
        attempts: how often the fallback store was asked.
        blocked_by: who had the lock there at first, in words.
        reason: why that store did not answer either.
    """

    def __init__(self, fallback: LockService, listeners: Listeners) -> None:
        self._fallback = fallback
        self._listeners = listeners
        self.attempts = 0
        self.blocked_by = ""
        self.reason = ""

    def acquire(self, claim: Claim, wait_seconds: float) -> Lease | None:
        """Return a lease of what is claimed, under a token of its own; None without an answer.

        What the fallback would do without its store's word does not count: the
        service that was asked can go without as well, and says so.

        Raises:
            LockTimeout: somebody has it there.
        """
        heard = copy.copy(self._fallback)  # the same in all but whom it tells
        heard.listeners = Listeners([self._hear])
        try:
            lease = heard.acquire(
                claim.lock_id,
                wait_timeout=wait_seconds,
                lock_timeout=claim.ttl_seconds,
                priority=claim.priority,
                request=claim.holder.request,
            )
        except LockServiceUnavailable:
            return None
        if lease.degraded and lease.also is None:
            self._fallback.give_back(lease)
            return None
        return lease

    def _hear(self, event: Event) -> None:
        match event:
            case Acquired():
                self.attempts, self.blocked_by = event.attempts, event.blocked_by
            case Degraded() | Unavailable():
                self.reason = event.reason
            case _:
                self._listeners.emit(event)
