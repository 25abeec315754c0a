"""Break one promise of `rewrite` in each store, as negative controls of the contract suite."""

from __future__ import annotations

from userlock.stores import MemoryStore


class IgnoresVersion(MemoryStore):
    def rewrite(self, lock_id: str, version: object, record: bytes) -> int | None:
        stored = self.read(lock_id)
        return None if stored is None else super().rewrite(lock_id, stored.version, record)


class Creates(MemoryStore):
    def rewrite(self, lock_id: str, version: object, record: bytes) -> int | None:
        return super().rewrite(lock_id, version, record) or self.create(lock_id, record, 60)


class OnlyShortens(MemoryStore):
    def rewrite(self, lock_id: str, version: object, record: bytes) -> int | None:
        stored = self.read(lock_id)
        if stored is None or len(stored.record) < len(record):
            return None
        return super().rewrite(lock_id, version, record)


class RenewsTheTtl(MemoryStore):
    def rewrite(self, lock_id: str, version: object, record: bytes) -> int | None:
        return self.swap(lock_id, version, record, 1)


class RoundsTheTtlDown(MemoryStore):
    def rewrite(self, lock_id: str, version: object, record: bytes) -> int | None:
        stored = self.read(lock_id)
        if stored is None or stored.seconds_left is None:
            return None
        return self.swap(lock_id, version, record, int(stored.seconds_left))
