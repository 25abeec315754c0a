"""The memory store: leases within one process, for tests.

Behaves as a real store does in every respect that the contract names (it
passes the same suite), and adds hooks to play the accidents that real ones
have: `evict`, `forget_everything`, `go_down`.
"""

from __future__ import annotations

import dataclasses
import threading

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.lease import (
    ANNOUNCE_SECONDS,
    Claim,
    Free,
    Granted,
    Held,
    Holder,
    Lease,
    Lost,
    Priority,
    Released,
    Unavailable,
    Yielded,
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    holder: Holder
    ends_at: float


class MemoryStore:
    """A lease store in this process's memory. Thread-safe. Not for production.

    Args:
        clock: for the time; tests hand in a manual one.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._mutex = threading.Lock()
        self._leases: dict[str, _Entry] = {}
        self._waiting: dict[str, _Entry] = {}
        self._down: str | None = None

    # --- the store --------------------------------------------------------------------------

    def add(
        self, claim: Claim, *, announce: bool = False
    ) -> Granted | Held | Yielded | Unavailable:
        with self._mutex:
            if self._down:
                return Unavailable(self._down)
            now = self.clock.now()
            if claim.priority is Priority.BATCH:
                if self._live(self._waiting, claim.lock_id):
                    return Yielded()
            elif announce:
                self._waiting[claim.lock_id] = _Entry(claim.holder, now + ANNOUNCE_SECONDS)
            entry = self._live(self._leases, claim.lock_id)
            if entry is not None and entry.holder.token != claim.token:
                return Held(entry.holder)
            self._leases[claim.lock_id] = _Entry(claim.holder, now + claim.ttl_seconds)
            return Granted(
                Lease(claim.lock_id, claim.token, now + claim.ttl_seconds, claim.ttl_seconds)
            )

    def withdraw(self, claim: Claim) -> None:
        with self._mutex:
            entry = self._waiting.get(claim.lock_id)
            if entry is not None and entry.holder.token == claim.token:
                del self._waiting[claim.lock_id]

    def extend(self, lease: Lease, ttl_seconds: float) -> Granted | Lost | Unavailable:
        with self._mutex:
            if self._down:
                return Unavailable(self._down)
            entry = self._live(self._leases, lease.lock_id)
            if entry is None or entry.holder.token != lease.token:
                return Lost(entry.holder if entry else None)
            ends_at = self.clock.now() + ttl_seconds
            self._leases[lease.lock_id] = _Entry(entry.holder, ends_at)
            return Granted(Lease(lease.lock_id, lease.token, ends_at, ttl_seconds))

    def release(self, lease: Lease) -> Released | Lost | Unavailable:
        with self._mutex:
            if self._down:
                return Unavailable(self._down)
            entry = self._live(self._leases, lease.lock_id)
            if entry is None or entry.holder.token != lease.token:
                return Lost(entry.holder if entry else None)
            del self._leases[lease.lock_id]
            return Released()

    def read(self, lock_id: str) -> Held | Free | Unavailable:
        with self._mutex:
            if self._down:
                return Unavailable(self._down)
            entry = self._live(self._leases, lock_id)
            return Held(entry.holder) if entry else Free()

    def close(self) -> None:
        """Nothing to give up."""

    # --- accidents --------------------------------------------------------------------------

    def evict(self, lock_id: str) -> None:
        """Lose one lease, as a memcached short of memory does."""
        with self._mutex:
            self._leases.pop(lock_id, None)

    def forget_everything(self) -> None:
        """Lose every lease, as a memcached that is restarted does."""
        with self._mutex:
            self._leases.clear()
            self._waiting.clear()

    def go_down(self, reason: str = "the store is down") -> None:
        """Answer nothing until `come_back`."""
        with self._mutex:
            self._down = reason

    def come_back(self) -> None:
        """Answer again."""
        with self._mutex:
            self._down = None

    def _live(self, entries: dict[str, _Entry], lock_id: str) -> _Entry | None:
        entry = entries.get(lock_id)
        if entry is not None and self.clock.now() >= entry.ends_at:
            del entries[lock_id]
            return None
        return entry
