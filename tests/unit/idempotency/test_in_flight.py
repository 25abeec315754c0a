"""Threads that run the same request wait for the first of them, for a second at most."""

from __future__ import annotations

import threading

import pytest

from userlock.idempotency import in_flight
from userlock.idempotency.in_flight import InFlight, Other


def found_by_another(flights: InFlight, key: object, seconds: float = 30.0) -> threading.Thread:
    """Start a thread that enters; its `found` is what it got."""

    def enter() -> None:
        with flights.entered(key, seconds) as other:
            thread.found = other  # type: ignore[attr-defined]

    thread = threading.Thread(target=enter)
    thread.start()
    return thread


@pytest.mark.parametrize("fails", [False, True])
def test_the_second_waits_until_the_first_has_left(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "MOST_SECONDS", 30.0)
    flights = InFlight()
    try:
        with flights.entered("a", 30) as other:
            assert other is Other.NONE
            others = [found_by_another(flights, "a") for _ in range(3)]
            for each in others:
                each.join(0.02)
            assert all(each.is_alive() for each in others)
            if fails:
                raise RuntimeError("a bug")
    except RuntimeError:
        assert fails
    for each in others:
        each.join(30)
        assert each.found is Other.LEFT  # type: ignore[attr-defined]
    with flights.entered("a", 30) as other:
        assert other is Other.NONE, "nothing is left behind"


def test_other_requests_do_not_wait() -> None:
    flights = InFlight()
    with flights.entered("a", 30):
        other = found_by_another(flights, "b")
        other.join(30)
        assert other.found is Other.NONE  # type: ignore[attr-defined]


@pytest.mark.parametrize(("most", "seconds"), [(0.01, 30.0), (30.0, 0.01), (30.0, 0.0)])
def test_the_wait_is_bounded(most: float, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may be paused, or wait for a lock that the second has."""
    monkeypatch.setattr(in_flight, "MOST_SECONDS", most)
    flights = InFlight()
    with flights.entered("a", 30):
        other = found_by_another(flights, "a", seconds)
        other.join(30)
        assert other.found is Other.RUNNING  # type: ignore[attr-defined]


def test_a_request_within_itself_does_not_wait() -> None:
    flights = InFlight()
    with flights.entered("a", 30), flights.entered("a", 30) as other:
        assert other is Other.NONE, "not RUNNING, as after a wait"
