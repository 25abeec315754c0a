"""The contract of `LeaseStore.fence`, for stores that say `fences`."""

from __future__ import annotations

from userlock.lock.store import LeaseStore
from userlock.testing.contract.base import StoreContract, created, found

_MOST = 1 << 63


class FenceContract(StoreContract):
    """The contract of `fence`."""

    def test_fence_appends(self, store: LeaseStore) -> None:
        assert store.fences, "the store does not say that it gives numbers"
        version = created(store.create("ann", b"first", 60))
        answer = store.fence("ann", b"\nline")
        assert answer is not None
        assert answer[0].record == b"first\nline"
        assert store.swap("ann", version, b"next", 60) is None, "the old version is spent"
        assert store.swap("ann", answer[0].version, b"next", 60) is not None

    def test_fence_creates_nothing(self, store: LeaseStore) -> None:
        assert store.fence("ann", b"\nline") is None
        assert store.read("ann") is None

    def test_numbers_grow_with_each_call(self, store: LeaseStore) -> None:
        version = created(store.create("ann", b"first", 60))
        numbers = [_number(store) for _ in range(5)]
        for _ in range(5):
            version = found(store.read("ann")).version
            assert store.swap("ann", version, b"next", 60) is not None
            numbers.append(_number(store))
            assert store.remove("ann", found(store.read("ann")).version)
            created(store.create("ann", b"first", 60))
            numbers.append(_number(store))
        assert numbers == sorted(set(numbers)), "the numbers do not grow"
        assert numbers[0] > 0
        assert numbers[-1] < _MOST


def _number(store: LeaseStore) -> int:
    answer = store.fence("ann", b"\n#")
    assert answer is not None
    return answer[1]
