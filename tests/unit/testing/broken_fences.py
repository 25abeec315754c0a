"""Break one promise of `fence` in each store, as negative controls of the contract suite."""

from __future__ import annotations

from userlock.lock.store import Stored
from userlock.stores import MemoryStore


class Forgets(MemoryStore):
    """Counts the seconds of the clock, which stands still."""

    def fence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        answer = super().fence(lock_id, line)
        return None if answer is None else (answer[0], int(self.clock.now()))


class CountsPerRecord(MemoryStore):
    """Begins again with each record."""

    def fence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        answer = super().fence(lock_id, line)
        return None if answer is None else (answer[0], len(answer[0].record))


class OnlyReads(MemoryStore):
    def fence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        stored = self.read(lock_id)
        return None if stored is None else (stored, next(self._versions))


class Creates(MemoryStore):
    def fence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        self.create(lock_id, b"first", 60)
        return super().fence(lock_id, line)
