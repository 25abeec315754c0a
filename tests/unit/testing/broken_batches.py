"""Break one promise of `swap_many` in each store, as negative controls of the contract suite."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.testing.broken_stores import dither
from userlock.lock.store import StoreUnavailable, Swap
from userlock.stores import MemoryStore

Outcomes = list[object | StoreUnavailable | None]


class LooksFirst(MemoryStore):
    def swap_many(self, swaps: Sequence[Swap]) -> Outcomes:
        stored = [self.read(each.lock_id) for each in swaps]
        dither()
        with self._mutex:
            return [
                self._put(each.lock_id, each.record, each.ttl_seconds)
                if found is not None and found.version == each.version
                else None
                for each, found in zip(swaps, stored, strict=True)
            ]


class IsAllOrNone(MemoryStore):
    def swap_many(self, swaps: Sequence[Swap]) -> Outcomes:
        stored = [self.read(each.lock_id) for each in swaps]
        if any(
            found is None or found.version != each.version
            for each, found in zip(swaps, stored, strict=True)
        ):
            return [None for _ in swaps]
        return super().swap_many(swaps)


class GivesUp(MemoryStore):
    """Stops at the first swap that is refused."""

    def swap_many(self, swaps: Sequence[Swap]) -> Outcomes:
        outcomes: Outcomes = []
        for each in swaps:
            refused = bool(outcomes) and outcomes[-1] is None
            outcomes.append(None if refused else self.swap(*each))
        return outcomes


class LeavesOutTheRefused(MemoryStore):
    def swap_many(self, swaps: Sequence[Swap]) -> Outcomes:
        done = [each for each in super().swap_many(swaps) if each is not None]
        return done + [None] * (len(swaps) - len(done))


class GivesOldVersions(MemoryStore):
    def swap_many(self, swaps: Sequence[Swap]) -> Outcomes:
        outcomes = super().swap_many(swaps)
        return [
            None if new is None else each.version for each, new in zip(swaps, outcomes, strict=True)
        ]


class CutsRecords(MemoryStore):
    def swap_many(self, swaps: Sequence[Swap]) -> Outcomes:
        return super().swap_many([each._replace(record=each.record[:1024]) for each in swaps])


class HasOneTtl(MemoryStore):
    def swap_many(self, swaps: Sequence[Swap]) -> Outcomes:
        return super().swap_many([each._replace(ttl_seconds=60) for each in swaps])


class NeedsOne(MemoryStore):
    def swap_many(self, swaps: Sequence[Swap]) -> Outcomes:
        self.read(swaps[0].lock_id)
        return super().swap_many(swaps)
