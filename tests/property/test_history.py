"""The checker of histories finds violations, and nothing else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.history import Attempt, Unfair, check


def attempt(began: float, granted: float | None, **options: Any) -> Attempt:
    """Return an attempt that waited unless granted at once, and held the lock for a second."""
    made = Attempt("ann", "a process", batch=False, began=began, timeout=100)
    if granted is not None:
        made.granted, made.released = granted, granted + 1
    if granted is None or granted > began:
        made.queued = began + 0.01
    return dataclasses.replace(made, **options)


HOLDER = attempt(0, 0)


def test_a_fair_history() -> None:
    check(
        [
            HOLDER,
            attempt(0.1, 3, batch=True),
            attempt(0.2, 1),
            attempt(0.3, 2),
            attempt(0.4, None, failed=1.4, timeout=1),
        ],
        store_seconds=0.1,
        ages_after=30,
    )


def test_simultaneous_attempts_may_be_served_in_any_order() -> None:
    """Neither is known to have been queued before the other began."""
    check([HOLDER, attempt(0.1, 2), attempt(0.105, 1)], store_seconds=0.1)


@pytest.mark.parametrize(
    ("what", "others"),
    [
        ("at once", [attempt(0.5, 0.9)]),
        ("before interactive", [attempt(0.1, 2), attempt(0.2, 1)]),
        ("before interactive", [attempt(0.1, 2), attempt(0.2, 1, batch=True)]),
        # It began earlier, but an interactive request was queued when the lock became free.
        ("before interactive", [attempt(0.1, 1, batch=True), attempt(0.2, 2)]),
        ("before batch", [attempt(0.1, 2, batch=True), attempt(0.2, 1, batch=True)]),
        ("before batch", [attempt(0.1, 33, batch=True), attempt(30.5, 32)]),
        ("waited for 5", [attempt(0.1, 5.1, timeout=3)]),
        ("never got a result", [attempt(0.1, None)]),
        # Attempts that do not wait overtake no waiter, either.
        ("before interactive", [attempt(0.1, 2.5), attempt(1.2, 1.2)]),
    ],
)
def test_an_unfair_history(what: str, others: list[Attempt]) -> None:
    with pytest.raises(Unfair, match=what):
        check([HOLDER, *others], store_seconds=0.1, ages_after=30)


def test_excused_attempts_may_be_overtaken() -> None:
    check([HOLDER, attempt(0.1, 2, excused=True), attempt(0.2, 1)], store_seconds=0.1)
