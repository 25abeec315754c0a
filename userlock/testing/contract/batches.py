"""The contract of `LeaseStore.swap_many`, for stores that say `batches`."""

from __future__ import annotations

import functools

from userlock.lock.store import LeaseStore, Stored, Swap
from userlock.testing.contract.base import LOCK_IDS, Race, StoreContract, created, found
from userlock.testing.contract.verbs import RECORDS

_MANY = 100
_ROUNDS = 10


class BatchContract(StoreContract):
    """The contract of `swap_many`. Not part of the whole: few stores have it."""

    def test_nothing_is_asked_for(self, store: LeaseStore) -> None:
        assert store.swap_many([]) == []

    def test_many_are_swapped(self, store: LeaseStore) -> None:
        swaps = [
            Swap(lock_id, created(store.create(lock_id, b"first", 60)), b"next %d" % number, 60)
            for number, lock_id in enumerate(_names())
        ]
        versions = store.swap_many(swaps)
        assert len(versions) == _MANY
        for number, (swap, version) in enumerate(zip(swaps, versions, strict=True)):
            created(version)
            assert _read(store, swap.lock_id).record == b"next %d" % number
            again = store.swap(swap.lock_id, version, b"last", 60)
            assert again is not None, "swap refused a version that swap_many gave"
            assert store.swap(swap.lock_id, version, b"not this", 60) is None

    def test_each_stands_alone(self, store: LeaseStore) -> None:
        """Refused, or gone, or fine: in their order, whatever became of the others."""
        versions = {
            lock_id: created(store.create(lock_id, b"first", 60)) for lock_id in _names()[:7]
        }
        a, b, c, d, e, f, g = versions
        created(store.swap(b, versions[b], b"another's", 60))
        found(store.append(d, b"\nline"))
        assert store.remove(e, versions[e])
        assert store.remove(f, versions[f])
        created(store.create(f, b"first", 60))
        outcomes = store.swap_many([Swap(each, versions[each], b"next", 60) for each in versions])
        done = [outcome is not None for outcome in outcomes]
        assert done == [True, False, True, False, False, False, True]
        assert [_read(store, each).record for each in (a, c, g)] == [b"next"] * 3
        assert _read(store, b).record == b"another's", "what was refused was written all the same"
        assert _read(store, d).record == b"first\nline"
        assert store.read(e) is None, "swap_many created a record"
        assert _read(store, f).record == b"first"

    def test_versions_of_every_verb_are_taken(self, store: LeaseStore) -> None:
        a, b, c, d = _names()[:4]
        versions = {each: created(store.create(each, b"first", 60)) for each in (a, b, c, d)}
        versions[b] = _read(store, b).version
        versions[c] = created(store.swap(c, versions[c], b"next", 60))
        versions[d] = found(store.append(d, b"\nline")).version
        for _ in range(2):
            swaps = [Swap(each, version, b"swapped", 60) for each, version in versions.items()]
            versions = dict(zip(versions, map(created, store.swap_many(swaps)), strict=True))
        for each, version in versions.items():
            assert store.remove(each, version), "remove refused a version that swap_many gave"

    def test_whatever_they_are_called_and_whatever_stands_in_them(self, store: LeaseStore) -> None:
        for records in (list(RECORDS.values()), [b"short again"] * len(RECORDS)):
            swaps = []
            for lock_id, record in zip(LOCK_IDS.values(), records, strict=False):
                stored = store.read(lock_id)
                version = store.create(lock_id, b"", 60) if stored is None else stored.version
                swaps.append(Swap(lock_id, created(version), record, 60))
            assert None not in store.swap_many(swaps)
            for swap in swaps:
                assert _read(store, swap.lock_id).record == swap.record

    def test_each_has_its_own_time_to_live(self, store: LeaseStore) -> None:
        a, b = _names()[:2]
        versions = [created(store.create(each, b"first", 60)) for each in (a, b)]
        swaps = [Swap(a, versions[0], b"next", 1), Swap(b, versions[1], b"next", 60)]
        assert None not in store.swap_many(swaps)
        self.eventually(store, "a record that lapses", lambda: _is_over(store.read(a)), within=9)
        assert not _read(store, b).lapsed

    def test_no_increment_is_lost_among_batches(self, store: LeaseStore) -> None:
        """Counts, swapped together by some threads, and one by one by another."""
        names = _names()[:5]
        for each in names:
            created(store.create(each, b"0", 60))
        race = Race()

        def count(*, together: bool) -> None:
            left = dict.fromkeys(names, _ROUNDS)
            while left:
                race.go_on("swaps hardly ever succeed")
                seen = {each: _read(store, each) for each in left}
                swaps = [
                    Swap(each, stored.version, b"%d" % (int(stored.record) + 1), 60)
                    for each, stored in seen.items()
                ]
                outcomes = (
                    store.swap_many(swaps) if together else [store.swap(*swap) for swap in swaps]
                )
                for swap, outcome in zip(swaps, outcomes, strict=True):
                    left[swap.lock_id] -= outcome is not None
                left = {each: rest for each, rest in left.items() if rest}

        race.run(
            *[functools.partial(count, together=True)] * 3, functools.partial(count, together=False)
        )
        assert [int(_read(store, each).record) for each in names] == [4 * _ROUNDS] * len(names)


def _names() -> list[str]:
    return [f"learner-{number}" for number in range(_MANY)]


def _read(store: LeaseStore, lock_id: str) -> Stored:
    return found(store.read(lock_id))


def _is_over(stored: Stored | None) -> bool:
    return stored is None or stored.lapsed
