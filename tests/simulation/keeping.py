"""A memory store in which waiters stay that have queued up since, as they do in Redis."""

from __future__ import annotations

import re
from collections import defaultdict

from userlock.stores import MemoryStore
from userlock.stores.memory import _Entry
from userlock.testing import ManualClock

#: Lines of waiters that have queued up, and nothing else.
_QUEUED = re.compile(rb"(?:\n\+[^\n]*)*").fullmatch


class KeepingStore(MemoryStore):
    """A memory store with a `take_over` of its own."""

    def __init__(self, *, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        #: The length of each version of a record since it was put there as a whole.
        self._lengths: defaultdict[str, dict[object, int]] = defaultdict(dict)

    def take_over(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> int | None:
        def do() -> int | None:
            entry, length = self._entry(lock_id), self._lengths[lock_id].get(version)
            if entry is None or length is None or not _QUEUED(later := entry.record[length:]):
                return None
            new = self._put(lock_id, record, ttl_seconds)
            if later:
                self._replace(lock_id, self._entries[lock_id], record + later)
            return new

        return self._carry_out("swap", do)

    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        version = super()._put(lock_id, record, ttl_seconds)
        self._lengths[lock_id] = {version: len(record)}
        return version

    def _replace(self, lock_id: str, entry: _Entry, record: bytes) -> _Entry:
        if not record.startswith(entry.record):
            self._lengths[lock_id].clear()
        entry = super()._replace(lock_id, entry, record)
        self._lengths[lock_id][entry.version] = len(record)
        return entry
