"""Any interleaving of simulated processes, faults and accidents; and that mistakes are found.

See `lock_machine` for what can happen, and `tests.simulation.watch` and
`.tenures` for what must be true whatever does.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.lock_machine import LockMachine
from userlock.lock import queue
from userlock.lock.lease import RELEASED, Lease, Released
from userlock.lock.leases import Leases
from userlock.lock.record import Record
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

_SETTINGS = settings(
    deadline=None,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_any_interleaving() -> None:
    run_state_machine_as_test(
        LockMachine, settings=settings(_SETTINGS, max_examples=40, stateful_step_count=40)
    )


@pytest.mark.slow
def test_many_more_interleavings() -> None:
    run_state_machine_as_test(
        LockMachine, settings=settings(_SETTINGS, max_examples=400, stateful_step_count=60)
    )


# --- the negative controls: with a protection off, a violation is found --------------------------


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
    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> int | None:
        return super().create(lock_id, record, ttl_seconds * 0.8)

    def swap(self, lock_id: str, version: object, record: bytes, ttl_seconds: float) -> int | None:
        return super().swap(lock_id, version, record, ttl_seconds * 0.8)


def _find_a_violation(store: type[MemoryStore], what: str) -> None:
    class Machine(LockMachine):
        def make_store(self, clock: ManualClock) -> MemoryStore:
            return store(clock=clock)

    with pytest.raises(AssertionError, match=what):
        run_state_machine_as_test(
            Machine,
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
        (_SwapsAnything, "replaced while|has lost|held by"),
        (_LapsesEarly, "replaced while its lease had still to run"),
    ],
)
def test_a_broken_store_is_found(store: type[MemoryStore], what: str) -> None:
    _find_a_violation(store, what)


def test_a_plain_delete_at_release_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(self: Leases, lease: Lease) -> Released:
        stored = self.store.read(lease.lock_id)
        if stored is not None:
            self.store.remove(lease.lock_id, stored.version)
        return RELEASED

    monkeypatch.setattr(Leases, "release", release)
    _find_a_violation(MemoryStore, "removed|said to be released")


@pytest.mark.slow
def test_waiters_without_patience_for_the_dead_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PATIENCE_SECONDS", math.inf)
    _find_a_violation(MemoryStore, "nobody takes")


@pytest.mark.slow
def test_impatient_waiters_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "PATIENCE_SECONDS", 0.1)
    _find_a_violation(MemoryStore, "went past")


def test_batch_that_ranks_with_people_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Record, "_urgent", lambda *_: True)
    _find_a_violation(MemoryStore, "batch went past")
