"""The checker of exclusion finds what it is there to find, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from tests.chaos.findings import Kind
from tests.chaos.history import Asked, History, Sight, Span
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
    writes: Sequence[Write] = (),
    sights: Sequence[Sight] = (),
) -> tuple[list[tuple[Kind, str]], Exclusion]:
    history = History(
        {write.id: write for write in writes}, {each.id: each for each in tenures}, list(sights)
    )
    exclusion = Exclusion(history, losses)
    return [(each.kind, each.about) for each in exclusion.findings()], exclusion


A = tenure("a", 1.0, 2.0)


@pytest.mark.parametrize(
    "tenures",
    [
        [A, tenure("b", 2.0, 3.0)],
        [A, tenure("b", 1.5, 3.0, lock="bob")],
        # Its lease was over by its own clock, whatever it went on to do.
        [tenure("a", 1.0, 5.0, deadline=2.0), tenure("b", 2.0, 3.0)],
        # It was killed, and its lease ran out.
        [tenure("a", 1.0, None, deadline=2.0), tenure("b", 2.0, 3.0)],
    ],
)
def test_one_after_the_other(tenures: Sequence[Asked]) -> None:
    found, exclusion = checked(tenures)
    assert found == []
    assert exclusion.explained.total() == 0
    assert exclusion.compared == len(tenures)


def test_one_that_was_over_before_its_holder_was_told() -> None:
    stopped = tenure("b", 1.9, 3.0, deadline=1.8)
    assert checked([A, stopped])[0] == []
    assert checked([A, tenure("b", 1.9, 3.0, degraded=True, confirmed=1.95, deadline=1.9)])[0] == []


@pytest.mark.parametrize(
    "tenures",
    [
        [A, tenure("b", 1.9, 3.0)],
        [tenure("a", 1.0, None, deadline=2.0), tenure("b", 1.9, 3.0)],
        # Not next to each other: the one in between has gone.
        [tenure("a", 1.0, 5.0), tenure("c", 0.5, 0.9), tenure("b", 3.0, 3.5)],
        # By the store's word after all.
        [A, tenure("b", 0.5, 3.0, degraded=True, confirmed=1.5)],
    ],
)
def test_two_at_once(tenures: Sequence[Asked]) -> None:
    assert checked(tenures)[0] == [(Kind.OVERLAP, "b")]


def test_each_of_several_is_found() -> None:
    several = [tenure("a", 1.0, 9.0), tenure("b", 2.0, 3.0), tenure("c", 4.0, 5.0)]
    assert checked(several)[0] == [(Kind.OVERLAP, "b"), (Kind.OVERLAP, "c")]


@pytest.mark.parametrize("confirmed", [None, 2.5])
def test_what_the_store_did_not_say_excludes_nobody(confirmed: float | None) -> None:
    later = tenure("b", 1.5, 3.0, degraded=True, confirmed=confirmed)
    found, exclusion = checked([A, later])
    assert found == []
    assert exclusion.explained == {"without the store's word": 1} or confirmed


@pytest.mark.parametrize(
    ("loss", "explains"),
    [
        (Span("restart", 1.4, 1.5), True),
        # The record was there before it was known to be.
        (Span("restart", 0.9, 0.95), True),
        (Span("restart", 0.5, 0.7), False),  # before it was asked for
        (Span("restart", 1.95, 3.0), False),  # after the other had it
        (Span("broken", 1.4, 1.5, lock="ann"), True),
        (Span("broken", 1.4, 1.5, lock="bob"), False),
    ],
)
def test_a_loss_explains_what_came_after_it(loss: Span, explains: bool) -> None:
    found, exclusion = checked([tenure("a", 1.0, 2.0, began=0.8), tenure("b", 1.9, 3.0)], loss)
    assert exclusion.explained == ({loss.kind: 1} if explains else {})
    assert found == ([] if explains else [(Kind.OVERLAP, "b")])


# --- what is read ---------------------------------------------------------------------------

B = tenure("b", 2.0, 3.0)


def write(
    name: str,
    before: str | None,
    told: float,
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
        made=told - 0.1,
        told=told,
    )


def sight(found: str | None, *, by: Asked = B, began: float = 2.2) -> Sight:
    return Sight("ann/c0", found, by.token, began, began + 0.1)


W1, W2 = write("w1", None, 1.3), write("w2", "w1", 1.6)


@pytest.mark.parametrize(
    ("writes", "found"),
    [
        ([W1, W2], "w2"),
        ([W1, W2, write("w3", "w2", 2.1, by=B)], "w3"),
        # What nobody knows of may have landed late; what was refused is not there.
        ([W1, write("w2", "w1", 1.6, outcome=Outcome.UNKNOWN)], "w1"),
        ([W1, write("w2", "w1", 1.6, outcome=Outcome.REFUSED)], "w1"),
        # It was not under the lock, or not any more.
        ([W1, write("w2", "w1", 1.6, by=None)], "w1"),
        ([W1, write("w2", "w1", 100.5)], "w1"),
        # It has been deleted, or may have been.
        ([W1, W2, write("d", "w2", 1.9, deletes=True)], None),
        ([W1, W2, write("d", "w2", 1.9, deletes=True, outcome=Outcome.UNKNOWN)], None),
    ],
)
def test_what_is_there_is_read(writes: Sequence[Write], found: str | None) -> None:
    assert checked([A, B], writes=writes, sights=[sight(found)])[0] == []


@pytest.mark.parametrize(
    ("writes", "found"),
    [
        ([W1, W2], "w1"),
        ([W1, W2], None),
        ([W1, write("d", "w1", 1.6, deletes=True)], "w1"),
        # It landed after the release.
        ([W1, write("w2", "w1", 2.4)], "w1"),
    ],
)
def test_what_is_older_is_found(writes: Sequence[Write], found: str | None) -> None:
    exclusion = checked([A, B], writes=writes, sights=[sight(found)])
    assert exclusion[0] == [(Kind.OUTDATED, "b")]


def test_what_is_read_when_the_lease_is_over_may_be_old() -> None:
    late = tenure("b", 2.0, 3.0, deadline=2.1)
    assert checked([A, late], writes=[W1, W2], sights=[sight("w1", by=late)])[0] == []


def test_what_is_read_after_a_loss_may_be_old() -> None:
    loss = Span("restart", 1.7, 1.8)
    assert checked([A, B], loss, writes=[W1, W2], sights=[sight("w1")])[0] == []


def test_what_was_read_before_the_stores_word_may_be_read_again() -> None:
    late = tenure("b", 1.1, 3.0, degraded=True, confirmed=2.0)
    early, again = sight("w1", by=late, began=1.2), sight("w1", by=late)
    assert checked([A, late], writes=[W1, W2], sights=[early, again])[0] == []
    sibling = dataclasses.replace(early, entity="another")  # by a query, which read both
    assert checked([A, late], writes=[W1, W2], sights=[sibling, again])[0] == []
    assert checked([A, late], writes=[W1, W2], sights=[again])[0] == [(Kind.OUTDATED, "b")]
