"""Functions for operators of the memory store: enough to try their tools on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

from userlock.clock import Clock
from userlock.lock.store import Finding, LeaseStore, Listed, Stored, Verdict
from userlock.stores.trial import try_out

_PATIENCE = 1.0


class ForOperators:
    """Looks at the records of this process."""

    clock: Clock
    _entries: dict[str, Any]
    _mutex: threading.Lock

    def lock_ids(self, limit: int) -> Iterator[Listed]:
        """As `ListingStore.lock_ids`."""
        with self._mutex:
            names = list(self._entries)
        for name in [name for name in names if self.read(name) is not None][:limit]:
            yield Listed(name, False, name)

    def read_listed(self, listed: Sequence[Listed]) -> list[Stored | None]:
        """As `ListingStore.read_listed`."""
        return [self.read(cast(str, each.key)) for each in listed]

    def seconds_left(self, lock_id: str) -> float | None:
        """As `TimedStore.seconds_left`."""
        if self.read(lock_id) is None:
            return None
        with self._mutex:
            entry = self._entries.get(lock_id)
        return None if entry is None else max(entry.lapses_at - self.clock.now(), 0.0)

    def examine(self) -> list[Finding]:
        """As `ExaminableStore.examine`."""
        server = "this process's memory"
        about = Finding(
            server,
            "reach",
            Verdict.WARNING,
            "locks in memory exclude within one process only, and end with it",
            "For tests. Name a server: memcache://HOST:PORT.",
            {"processes": 1},
        )
        return [about, *try_out(cast(LeaseStore, self), server, patience=_PATIENCE)]

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        """As `LeaseStore.read`."""
        raise NotImplementedError
