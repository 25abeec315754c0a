"""The contracts of what a store may do besides: `fence`, `append_and_wake`."""

from __future__ import annotations

from userlock.lock.lease import Priority
from userlock.lock.record import aged, done, joining
from userlock.lock.store import LeaseStore, WakeUps
from userlock.testing.contract.base import StoreContract, created, found
from userlock.testing.locks import make_claim
from userlock.waits import Bell, run

_MOST = 1 << 63
#: The longest wait for a message, in seconds.
PATIENCE = 10.0
#: A message for somebody else would have come by then, in seconds.
_SOON = 0.05


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


class WakeContract(StoreContract):
    """The contract of wake-ups."""

    def test_a_release_wakes_the_first_waiter(self, store: LeaseStore) -> None:
        crowd = _Crowd(store)
        first, second = crowd.joins(), crowd.joins()
        crowd.ends(crowd.holder)
        crowd.is_woken(first)
        crowd.sleeps_on(second)

    def test_it_is_appended_as_ever(self, store: LeaseStore) -> None:
        crowd = _Crowd(store)
        before = found(store.read("ann")).record
        answer = found(store.append_and_wake("ann", b"\nline"))
        assert answer.record == before + b"\nline"
        assert answer.version is not None
        assert store.append_and_wake("nobody's", b"\nline") is None
        assert store.read("nobody's") is None
        crowd.ends(crowd.holder)  # nobody waits

    def test_interactive_comes_before_batch(self, store: LeaseStore) -> None:
        crowd = _Crowd(store)
        batch, interactive = crowd.joins(Priority.BATCH), crowd.joins()
        crowd.ends(crowd.holder)
        crowd.is_woken(interactive)
        crowd.sleeps_on(batch)

    def test_batch_that_has_aged_comes_in_its_turn(self, store: LeaseStore) -> None:
        crowd = _Crowd(store)
        older, old = crowd.joins(Priority.BATCH), crowd.joins(Priority.BATCH)
        young = crowd.joins()
        found(store.append("ann", aged(old)))  # so the older one counts as aged, too
        crowd.ends(crowd.holder)
        crowd.is_woken(older)
        crowd.sleeps_on(old)
        crowd.sleeps_on(young)

    def test_waiters_that_left_are_passed(self, store: LeaseStore) -> None:
        crowd = _Crowd(store)
        left, waits = crowd.joins(), crowd.joins()
        found(store.append("ann", done(left)))
        crowd.ends(crowd.holder)
        crowd.is_woken(waits)
        crowd.sleeps_on(left)

    def test_a_waiter_that_has_ended_is_forgotten(self, store: LeaseStore) -> None:
        crowd = _Crowd(store)
        gone = crowd.joins()
        crowd.wake_ups.end(gone)
        crowd.wake_ups.end(gone)
        crowd.ends(crowd.holder)
        other = crowd.joins()
        crowd.ends(gone)
        crowd.is_woken(other)
        assert not crowd.bells[gone].rung

    def test_a_bell_that_is_rung_here_ends_the_wait(self, store: LeaseStore) -> None:
        crowd = _Crowd(store)
        token = crowd.joins()
        crowd.bells[token].ring()
        crowd.bells[token].wait(PATIENCE)
        assert not crowd.bells[token].answer()[0], "the store has not woken it"


class _Crowd:
    """A holder, and waiters with their bells."""

    def __init__(self, store: LeaseStore) -> None:
        assert store.wake_ups is not None, "the store does not wake waiters"
        self._store = store
        self.wake_ups: WakeUps = store.wake_ups
        self.bells: dict[str, Bell] = {}
        holder = make_claim("ann")
        self.holder = holder.token
        created(store.create("ann", holder.record, 60))

    def joins(self, priority: Priority = Priority.INTERACTIVE) -> str:
        claim = make_claim("ann", priority=priority)
        bell = self.bells[claim.token] = Bell()
        bell.listen = self.wake_ups.wait
        run(self.wake_ups.begin, "ann", claim.token, bell)
        found(self._store.append("ann", joining(claim.holder)))
        return claim.token

    def ends(self, token: str) -> None:
        found(self._store.append_and_wake("ann", done(token)))

    def is_woken(self, token: str) -> None:
        self.bells[token].wait(PATIENCE)
        assert self.bells[token].answer()[0], "the waiter was not woken"

    def sleeps_on(self, token: str) -> None:
        self.bells[token].wait(_SOON)
        assert not self.bells[token].rung, "another waiter than the first one was woken"
