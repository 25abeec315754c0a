"""Test the contract suite by negative controls: it finds every store that breaks a promise."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.testing import broken_fences, broken_rewrites, broken_wakes
from tests.unit.testing import broken_stores as broken
from userlock.lock.store import LeaseStore
from userlock.stores import MemoryStore
from userlock.testing import (
    FenceContract,
    ForkContract,
    LeaseStoreContract,
    ManualClock,
    RewriteContract,
    WakeContract,
)
from userlock.testing.contract import waking
from userlock.testing.contract.base import LOCK_IDS

#: Each broken store, with a test that must fail on it.
FOUND_OUT_BY: dict[type[MemoryStore], str] = {
    broken.CreateLooksFirst: "test_one_of_many_creates_wins",
    broken.SwapLooksFirst: "test_one_of_many_swaps_wins",
    broken.RemoveLooksFirst: "test_one_of_many_removes_wins",
    broken.AppendReadsThenWrites: "test_no_line_is_lost_among_many",
    broken.BreaksInChildren: "test_a_forked_child_has_a_store_of_its_own",
    broken.MixesUpRepliesInChildren: "test_a_forked_child_has_a_store_of_its_own",
    broken.SwapIgnoresVersion: "test_a_version_is_spent_by_whatever_changes_the_record",
    broken.SwapCreates: "test_swap_creates_nothing",
    broken.RemoveIgnoresVersion: "test_a_version_is_spent_by_whatever_changes_the_record",
    broken.AppendSpendsNoVersion: "test_a_version_is_spent_by_whatever_changes_the_record",
    broken.VersionsAreRecords: "test_a_version_is_spent_by_whatever_changes_the_record",
    broken.VersionsStartAgain: "test_a_version_is_spent_by_whatever_changes_the_record",
    broken.CreateOverwrites: "test_a_record_that_is_there_is_not_created",
    broken.AppendCreates: "test_append_to_nothing_creates_nothing",
    broken.AppendAnswersWithWhatWas: "test_append_adds_a_line",
    broken.ReadsWhatIsNotThere: "test_where_nothing_was_created_nothing_is_read",
    broken.RemoveTakesEverything: "test_remove_leaves_other_locks_alone",
    broken.HurryReadsNothing: "test_reading_in_a_hurry_reads_the_same",
    broken.CutsBigRecords: "test_a_record_is_kept_byte_for_byte",
    broken.StripsRecords: "test_a_record_is_kept_byte_for_byte",
    broken.FoldsSurrogates: "test_different_lock_ids_never_meet",
    broken.JoinsSurrogates: "test_different_lock_ids_never_meet",
    broken.NormalizesUnicode: "test_different_lock_ids_never_meet",
    broken.CutsLockIds: "test_different_lock_ids_never_meet",
    broken.StripsLockIds: "test_different_lock_ids_never_meet",
    broken.LapsesEarly: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.LapsesLate: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.NeverLapses: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.GivesNoGrace: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.GraceIsShort: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.RefusesBriefRecords: "test_any_time_to_live_is_one",
    broken.TakesLongTtlsForDates: "test_the_longest_time_to_live_has_not_lapsed",
    broken.KeepsForEver: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.AppendRenewsTheTtl: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.SwapKeepsTheTtl: "test_records_lapse_on_time_and_go_after_the_grace",
    broken_rewrites.IgnoresVersion: "test_rewrite_takes_no_spent_version",
    broken_rewrites.Creates: "test_rewrite_creates_nothing",
    broken_rewrites.OnlyShortens: "test_rewrite_replaces_the_record",
    broken_rewrites.RenewsTheTtl: "test_records_lapse_on_time_and_go_after_the_grace",
    broken_rewrites.RoundsTheTtlDown: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.RefusedCreateRenewsTheTtl: "test_records_lapse_on_time_and_go_after_the_grace",
    broken.CreateTakesOverTheLapsed: "test_a_lapsed_record_can_still_be_changed",
    broken.LapsedCannotBeSwapped: "test_a_lapsed_record_can_still_be_changed",
    broken.LapsedCannotBeRemoved: "test_a_lapsed_record_can_still_be_changed",
    broken.LapsingSpendsTheVersion: "test_a_lapsed_record_can_still_be_changed",
    broken_fences.Forgets: "test_numbers_grow_with_each_call",
    broken_fences.CountsPerRecord: "test_numbers_grow_with_each_call",
    broken_fences.OnlyReads: "test_fence_appends",
    broken_fences.Creates: "test_fence_creates_nothing",
    broken_wakes.WakesNobody: "test_a_release_wakes_the_first_waiter",
    broken_wakes.WakesTheLast: "test_a_release_wakes_the_first_waiter",
    broken_wakes.WakesAll: "test_a_release_wakes_the_first_waiter",
    broken_wakes.GoesByArrival: "test_interactive_comes_before_batch",
    broken_wakes.KnowsNoAge: "test_batch_that_has_aged_comes_in_its_turn",
    broken_wakes.WakesThoseWhoLeft: "test_waiters_that_left_are_passed",
    broken_wakes.ForgetsNobody: "test_a_waiter_that_has_ended_is_forgotten",
    broken_wakes.WakesAtOnce: "test_a_bell_that_is_rung_here_ends_the_wait",
    broken.BreaksAfterClose: "test_use_after_close_works_or_is_refused_cleanly",
    broken.CloseOnlyOnce: "test_close_can_be_called_twice",
}

#: Tests of races, beside the one above, that a store without atomic verbs must fail.
ALSO_FOUND_OUT_BY: list[tuple[type[MemoryStore], str]] = [
    (broken.SwapLooksFirst, "test_a_swap_loses_no_line_that_its_writer_has_not_seen"),
    (broken.SwapLooksFirst, "test_no_increment_is_lost_among_appends"),
    (broken.RemoveLooksFirst, "test_either_a_remove_or_an_append_comes_first"),
    (broken.AppendReadsThenWrites, "test_either_a_remove_or_an_append_comes_first"),
    (broken.AppendReadsThenWrites, "test_a_swap_loses_no_line_that_its_writer_has_not_seen"),
    (broken.AppendReadsThenWrites, "test_no_increment_is_lost_among_appends"),
    (broken.CreateLooksFirst, "test_create_and_remove_keep_threads_apart"),
    (broken.RemoveIgnoresVersion, "test_either_a_remove_or_an_append_comes_first"),
    (broken.CreateOverwrites, "test_create_and_remove_keep_threads_apart"),
]


class Contract(LeaseStoreContract, RewriteContract, ForkContract, FenceContract, WakeContract):
    """The suite, run by this module on a manual clock."""

    def now(self, store: LeaseStore) -> float:
        assert isinstance(store, MemoryStore)
        return store.clock.now()

    def wait(self, store: LeaseStore, seconds: float) -> None:
        assert isinstance(store, MemoryStore)
        store.clock.sleep(seconds)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory a wake-up comes at once, or never."""
    monkeypatch.setattr(waking, "PATIENCE", 0.05)


NAMES = [name for name, _ in inspect.getmembers(Contract) if name.startswith("test_")]


def cases(name: str) -> Iterator[dict[str, Any]]:
    """Give the arguments of one test, beside the store, as pytest would."""
    test = getattr(Contract, name)
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    axes: list[list[tuple[str, object]]] = [
        [(mark.args[0], value) for value in mark.args[1]] for mark in marks
    ]
    if "lock_id" in inspect.signature(test).parameters:
        axes.append([("lock_id", lock_id) for lock_id in LOCK_IDS.values()])
    for combination in itertools.product(*axes):
        yield dict(combination)


def fails(make: type[MemoryStore], name: str) -> bool:
    """Return whether the store fails this test of the contract."""
    for arguments in cases(name):
        try:
            getattr(Contract(), name)(make(clock=ManualClock()), **arguments)
        except Exception:
            return True
    return False


@pytest.mark.parametrize("name", NAMES)
def test_a_store_that_keeps_its_promises_passes(name: str) -> None:
    assert not fails(MemoryStore, name)


@pytest.mark.parametrize(
    ("make", "name"),
    [*FOUND_OUT_BY.items(), *ALSO_FOUND_OUT_BY],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_store_that_breaks_one_is_found_out(make: type[MemoryStore], name: str) -> None:
    # Races depend on chance: sometimes no thread comes in between.
    assert any(fails(make, name) for _ in range(10))


def test_every_test_has_a_store_that_fails_it() -> None:
    """Each test of the contract fails on some broken store."""
    found_out_by = {*FOUND_OUT_BY.values(), *(name for _, name in ALSO_FOUND_OUT_BY)}
    idle = [
        name
        for name in NAMES
        if name not in found_out_by and not any(fails(make, name) for make in FOUND_OUT_BY)
    ]
    assert idle == []
