"""The checker of exclusion finds violations, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tests.chaos.findings import Kind
from tests.chaos.history import Asked, History, LockedRead, Span
from tests.chaos.record import Outcome, Write
from tests.chaos.tenures import Exclusion


def tenure(
    name: str,
    granted: float,
    released: float | None,
    *,
    deadline: float = 100.0,
    lock: str = "ann",
    began: float | None = None,
    degraded: bool = False,
    confirmed: float | None = None,
) -> Asked:
    return Asked(
        lock,
        "process",
        batch=False,
        began=granted if began is None else began,
        timeout=10.0,
        granted=granted,
        released=released,
        id=name,
        token=f"token of {name}",
        degraded=degraded,
        confirmed=confirmed,
        deadline=deadline,
    )


def checked(
    tenures: Sequence[Asked],
    *losses: Span,
    fallback_losses: Sequence[Span] = (),
    writes: Sequence[Write] = (),
    reads: Sequence[LockedRead] = (),
) -> tuple[list[tuple[Kind, str]], Exclusion]:
    history = History(
        {write.id: write for write in writes}, {each.id: each for each in tenures}, list(reads)
    )
    exclusion = Exclusion(history, losses, fallback_losses)
    return [(each.kind, each.about) for each in exclusion.findings()], exclusion


A = tenure("a", 1.0, 2.0)


@pytest.mark.parametrize(
    "tenures",
    [
        [A, tenure("b", 2.0, 3.0)],
        [A, tenure("b", 1.5, 3.0, lock="bob")],
        # Its lease had ended by its own clock, whatever it did later.
        [tenure("a", 1.0, 5.0, deadline=2.0), tenure("b", 2.0, 3.0)],
        # It was killed, and its lease expired.
        [tenure("a", 1.0, None, deadline=2.0), tenure("b", 2.0, 3.0)],
    ],
)
def test_one_after_the_other(tenures: Sequence[Asked]) -> None:
    found, exclusion = checked(tenures)
    assert found == []
    assert exclusion.explained.total() == 0
    assert exclusion.compared == len(tenures)


def test_a_tenure_that_ended_before_it_was_reported() -> None:
    stopped = tenure("b", 1.9, 3.0, deadline=1.8)
    assert checked([A, stopped])[0] == []
    assert checked([A, tenure("b", 1.9, 3.0, degraded=True, confirmed=1.95, deadline=1.9)])[0] == []


@pytest.mark.parametrize(
    "tenures",
    [
        [A, tenure("b", 1.9, 3.0)],
        [tenure("a", 1.0, None, deadline=2.0), tenure("b", 1.9, 3.0)],
        # Not consecutive: the one in between has ended.
        [tenure("a", 1.0, 5.0), tenure("c", 0.5, 0.9), tenure("b", 3.0, 3.5)],
        # Confirmed later by the store.
        [A, tenure("b", 0.5, 3.0, degraded=True, confirmed=1.5)],
    ],
)
def test_two_at_once(tenures: Sequence[Asked]) -> None:
    assert checked(tenures)[0] == [(Kind.OVERLAP, "b")]


def test_each_of_several_is_found() -> None:
    several = [tenure("a", 1.0, 9.0), tenure("b", 2.0, 3.0), tenure("c", 4.0, 5.0)]
    assert checked(several)[0] == [(Kind.OVERLAP, "b"), (Kind.OVERLAP, "c")]


@pytest.mark.parametrize("confirmed", [None, 2.5])
def test_degraded_leases_do_not_exclude(confirmed: float | None) -> None:
    later = tenure("b", 1.5, 3.0, degraded=True, confirmed=confirmed)
    found, exclusion = checked([A, later])
    assert found == []
    assert exclusion.explained == {"a degraded lease": 1} or confirmed


@pytest.mark.parametrize(
    ("loss", "explains"),
    [
        (Span("restart", 1.4, 1.5), True),
        # The record may have existed before that was known.
        (Span("restart", 0.9, 0.95), True),
        (Span("restart", 0.5, 0.7), False),  # before its request
        (Span("restart", 1.95, 3.0), False),  # after the other's grant
        (Span("broken", 1.4, 1.5, locks=frozenset({"ann"})), True),
        (Span("broken", 1.4, 1.5, locks=frozenset({"bob"})), False),
    ],
)
def test_a_loss_explains_a_later_overlap(loss: Span, explains: bool) -> None:
    found, exclusion = checked([tenure("a", 1.0, 2.0, began=0.8), tenure("b", 1.9, 3.0)], loss)
    assert exclusion.explained == ({loss.kind: 1} if explains else {})
    assert found == ([] if explains else [(Kind.OVERLAP, "b")])


def backed(
    name: str,
    granted: float,
    released: float,
    *,
    backed_until: float = 100.0,
    deadline: float = 100.0,
) -> Asked:
    lease = tenure(name, granted, released, deadline=deadline, degraded=True)
    return dataclasses.replace(lease, backed_until=backed_until)


RESTART = Span("restart", 1.4, 1.6)


@pytest.mark.parametrize(("sent", "explains"), [(0.9, True), (1.3, False)])
def test_a_loss_before_the_request_of_the_first_one(sent: float, explains: bool) -> None:
    """The second one's record was lost, and its reply came late."""
    tenures = [tenure("a", 1.9, 2.2, began=1.5), tenure("b", 2.0, 3.0, began=sent)]
    assert (checked(tenures, Span("restart", 1.0, 1.2))[0] == []) == explains


def test_a_loss_long_before_the_grant_of_a_waiter_explains_nothing() -> None:
    tenures = [tenure("a", 8.0, 9.5, began=7.9), tenure("b", 9.0, 9.2, began=0.5)]
    assert checked(tenures, Span("restart", 1.0, 1.2))[0] == [(Kind.OVERLAP, "b")]


def test_leases_in_the_fallback_store_exclude_each_other() -> None:
    """Whatever happens to the first store."""
    two = [backed("a", 1.0, 2.0), backed("b", 1.5, 3.0)]
    assert checked(two, RESTART)[0] == [(Kind.OVERLAP, "b")]
    assert checked(two, fallback_losses=[RESTART])[0] == []


@pytest.mark.parametrize(
    "earlier",
    [
        backed("a", 1.0, 1.5),
        backed("a", 1.0, 2.0, backed_until=1.5),  # it went on without the fallback store
        backed("a", 1.0, 2.0, deadline=1.5),
        tenure("a", 1.0, 2.0),  # of the first store, which did not answer the other one
        tenure("a", 1.0, 2.0, degraded=True),  # neither store answered
    ],
)
def test_leases_that_the_fallback_store_need_not_exclude(earlier: Asked) -> None:
    found, exclusion = checked([earlier, backed("b", 1.5, 3.0)])
    assert found == []
    assert exclusion.compared_backed == 1 + (earlier.backed_until is not None)


@pytest.mark.parametrize(("locks", "explains"), [({"ann"}, True), ({"bob", "cid"}, False)])
def test_a_fault_of_one_server_excuses_its_locks_only(locks: set[str], explains: bool) -> None:
    loss = dataclasses.replace(RESTART, locks=frozenset(locks))
    found, _ = checked([tenure("a", 1.0, 2.0), tenure("b", 1.9, 3.0, began=1.5)], loss)
    assert found == ([] if explains else [(Kind.OVERLAP, "b")])


# --- reads ----------------------------------------------------------------------------------

B = tenure("b", 2.0, 3.0)


def write(
    name: str,
    before: str | None,
    reported: float,
    *,
    by: Asked | None = A,
    outcome: Outcome = Outcome.ACCEPTED,
    deletes: bool = False,
) -> Write:
    return Write(
        name,
        "o",
        "ann/c0",
        before,
        token=None if by is None else by.token,
        outcome=outcome,
        deletes=deletes,
        made=reported - 0.1,
        reported=reported,
    )


def read(found: str | None, *, by: Asked = B, began: float = 2.2) -> LockedRead:
    return LockedRead("ann/c0", found, by.token, began, began + 0.1)


W1, W2 = write("w1", None, 1.3), write("w2", "w1", 1.6)


@pytest.mark.parametrize(
    ("writes", "found"),
    [
        ([W1, W2], "w2"),
        ([W1, W2, write("w3", "w2", 2.1, by=B)], "w3"),
        # An unknown write may have landed late; a refused one has not.
        ([W1, write("w2", "w1", 1.6, outcome=Outcome.UNKNOWN)], "w1"),
        ([W1, write("w2", "w1", 1.6, outcome=Outcome.REFUSED)], "w1"),
        # The write was not under the lock, or no longer.
        ([W1, write("w2", "w1", 1.6, by=None)], "w1"),
        ([W1, write("w2", "w1", 100.5)], "w1"),
        # The entity has been deleted, or may have been.
        ([W1, W2, write("d", "w2", 1.9, deletes=True)], None),
        ([W1, W2, write("d", "w2", 1.9, deletes=True, outcome=Outcome.UNKNOWN)], None),
    ],
)
def test_current_reads_are_no_finding(writes: Sequence[Write], found: str | None) -> None:
    assert checked([A, B], writes=writes, reads=[read(found)])[0] == []


@pytest.mark.parametrize(
    ("writes", "found"),
    [
        ([W1, W2], "w1"),
        ([W1, W2], None),
        ([W1, write("d", "w1", 1.6, deletes=True)], "w1"),
        # The write landed after the release.
        ([W1, write("w2", "w1", 2.4)], "w1"),
    ],
)
def test_stale_reads_are_found(writes: Sequence[Write], found: str | None) -> None:
    exclusion = checked([A, B], writes=writes, reads=[read(found)])
    assert exclusion[0] == [(Kind.OUTDATED, "b")]


@pytest.mark.parametrize(("reported", "wrong"), [(1.9, False), (1.2, True)])
def test_a_creation_may_have_been_retried_after_its_deletion(reported: float, wrong: bool) -> None:
    """Its reply was lost; then it was changed and deleted under a lock, and created again."""
    created = write("w1", None, 1.0, by=None)
    created.reported = reported
    writes = [created, W2, write("d", "w2", 1.8, deletes=True)]
    findings = checked([A, B], writes=writes, reads=[read("w1")])[0]
    assert findings == ([(Kind.OUTDATED, "b")] if wrong else [])
    # A state of the second creation is not older than a state of the first.
    again = write("x", "w1", 2.0, by=None)
    assert checked([A, B], writes=[*writes, again], reads=[read("x")])[0] == []


def test_a_deletion_that_has_not_landed_is_no_excuse() -> None:
    created = write("w1", None, 1.0, by=None, outcome=Outcome.UNKNOWN)
    in_doubt = write("d", "w1", 1.1, by=None, deletes=True, outcome=Outcome.UNKNOWN)
    exclusion = checked([A, B], writes=[created, in_doubt, W2], reads=[read("w1")])
    assert exclusion[0] == [(Kind.OUTDATED, "b")]


def test_reads_after_the_lease_may_be_stale() -> None:
    late = tenure("b", 2.0, 3.0, deadline=2.1)
    assert checked([A, late], writes=[W1, W2], reads=[read("w1", by=late)])[0] == []


def test_reads_after_a_loss_may_be_stale() -> None:
    loss = Span("restart", 1.7, 1.8)
    assert checked([A, B], loss, writes=[W1, W2], reads=[read("w1")])[0] == []


def test_reads_before_the_confirmation_may_be_repeated() -> None:
    late = tenure("b", 1.1, 3.0, degraded=True, confirmed=2.0)
    early, again = read("w1", by=late, began=1.2), read("w1", by=late)
    assert checked([A, late], writes=[W1, W2], reads=[early, again])[0] == []
    sibling = dataclasses.replace(early, entity="another")  # by a query, which read both
    assert checked([A, late], writes=[W1, W2], reads=[sibling, again])[0] == []
    assert checked([A, late], writes=[W1, W2], reads=[again])[0] == [(Kind.OUTDATED, "b")]
