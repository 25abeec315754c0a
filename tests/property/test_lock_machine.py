"""Any interleaving of simulated processes, faults and accidents, with negative controls.

`lock_machine` has the possible events, `tests.simulation.watch` and `.tenures` the invariants.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.lock_machine import LockMachine
from tests.simulation.keeping import KeepingStore
from userlock.lock import queue, record
from userlock.lock.lease import RELEASED, Lease, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import Record, done
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

_SETTINGS = settings(
    deadline=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def _machine(store: type[MemoryStore]) -> type[LockMachine]:
    class Machine(LockMachine):
        def make_store(self, clock: ManualClock) -> MemoryStore:
            return store(clock=clock)

    return Machine


@pytest.mark.parametrize("store", [MemoryStore, KeepingStore])
def test_any_interleaving(store: type[MemoryStore]) -> None:
    run_state_machine_as_test(
        _machine(store), settings=settings(_SETTINGS, max_examples=40, stateful_step_count=40)
    )


@pytest.mark.long
@pytest.mark.parametrize("store", [MemoryStore, KeepingStore])
def test_many_more_interleavings(store: type[MemoryStore]) -> None:
    run_state_machine_as_test(
        _machine(store), settings=settings(_SETTINGS, max_examples=400, stateful_step_count=60)
    )


# --- the negative controls: without a protection, a violation is found ----------------------------


class _RemovesAnything(MemoryStore):
    def remove(self, lock_id: str, version: object) -> bool:
        stored = self.read(lock_id)
        return stored is not None and super().remove(lock_id, stored.version)


class _SwapsAnything(MemoryStore):
    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        stored = self.read(lock_id)
        if stored is None:
            return None
        return super().swap(lock_id, stored.version, record, ttl_seconds)


class _LapsesEarly(MemoryStore):
    def _put(self, lock_id: str, record: bytes, ttl_seconds: float) -> int:
        return super()._put(lock_id, record, ttl_seconds * 0.8)


class _TakesOverAnything(MemoryStore):
    def take_over(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> int | None:
        stored = self.read(lock_id)
        return None if stored is None else self.swap(lock_id, stored.version, record, ttl_seconds)


class _TakesOverForBatch(KeepingStore):
    swap = KeepingStore.take_over


def _find_a_violation(store: type[MemoryStore], what: str) -> None:
    with pytest.raises(AssertionError, match=what):
        run_state_machine_as_test(
            _machine(store),
            settings=settings(
                _SETTINGS,
                max_examples=2000,
                stateful_step_count=50,
                phases=[Phase.generate],
                derandomize=True,
                database=None,
            ),
        )


@pytest.mark.parametrize(
    ("store", "what"),
    [
        (_RemovesAnything, "removed"),
        (_SwapsAnything, "replaced while|has lost|held by|not free"),
        (_LapsesEarly, "replaced before the end of its lease"),
        (_TakesOverAnything, "a write has lost"),
        (_TakesOverForBatch, "batch overtook"),
    ],
)
def test_a_broken_store_is_found(store: type[MemoryStore], what: str) -> None:
    _find_a_violation(store, what)


def test_a_plain_delete_at_release_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def release(leases: LeaseProtocol, lease: Lease) -> Released:
        stored = await leases.store.aread(lease.lock_id)
        if stored is not None:
            await leases.store.aremove(lease.lock_id, stored.version)
        return RELEASED

    monkeypatch.setattr(LeaseProtocol, "release", release)
    _find_a_violation(MemoryStore, "removed|reported as released|held by")


@pytest.mark.slow
def test_waiters_that_never_pass_the_dead_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "PATIENCE_SECONDS", math.inf)
    _find_a_violation(MemoryStore, "no waiter takes")


@pytest.mark.slow
def test_impatient_waiters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PATIENCE_SECONDS", 0.1)
    _find_a_violation(MemoryStore, "overtook")


def test_batch_that_ranks_as_interactive_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Record, "_ranks_as_batch", lambda *_: False)
    _find_a_violation(MemoryStore, "batch overtook")


def test_positions_lost_with_timed_out_waiters_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Record, "compacted", lambda record: record._record(record._holder_line, []))
    _find_a_violation(MemoryStore, "a write has lost")


def test_impatient_callers_without_reservations_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def reserve(*_: object, **__: object) -> bool:
        return False

    monkeypatch.setattr(LeaseProtocol, "reserve", reserve)
    _find_a_violation(MemoryStore, "refused to a caller that does not wait")


@pytest.mark.slow
def test_a_reservation_that_does_not_last_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "PATIENCE_SECONDS", 0.05)
    _find_a_violation(MemoryStore, "overtook")


@pytest.mark.slow
def test_processes_distinguished_by_their_labels_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here all have one host name and process id."""
    monkeypatch.setattr(record, "process_of", lambda token: b"container/1")
    _find_a_violation(
        MemoryStore, r"overtook \d+ waiters of [23] processes|no waiter takes \w+, free for"
    )


def test_a_release_without_room_in_the_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def append_done(
        leases: LeaseProtocol, lock_id: str, token: str, *, by: str = ""
    ) -> Record | None:
        stored = await leases.store.aappend(lock_id, done(token, by=by))
        return None if stored is None else Record(stored)

    monkeypatch.setattr(LeaseProtocol, "_append_done", append_done)
    _find_a_violation(MemoryStore, "was reported as released, but still exists")
