"""The game of the two players, and its figures."""

from __future__ import annotations

import threading
from itertools import pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import pytest

from benchmarks.handoff import Tally, fitting
from benchmarks.players import Turn, turns_of


class _Lock:
    """A lock for two threads that keeps its history."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.history: list[tuple[str, str]] = []

    def acquire(self) -> bool:
        self._lock.acquire()
        self.history.append(("acquire", threading.current_thread().name))
        return True

    def release(self) -> None:
        self.history.append(("release", threading.current_thread().name))
        self._lock.release()


@pytest.mark.parametrize("handoffs", [1, 4, 5])
def test_the_lock_changes_hands_every_time(handoffs: int) -> None:
    lock = _Lock()
    turns: dict[str, list[Turn]] = {}

    def play(name: str, peer: Connection) -> None:
        turns[name] = turns_of(lock, peer, first=name == "A", handoffs=handoffs, hold=0)

    threads = [
        threading.Thread(target=play, name=name, args=(name, peer))
        for name, peer in zip("AB", Pipe(), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    holders = [name for verb, name in lock.history if verb == "acquire"]
    assert holders == [("A", "B")[number % 2] for number in range(handoffs + 1)]
    in_order = [turns[name][number // 2] for number, name in enumerate(holders)]
    assert [turn.released_at == 0 for turn in in_order] == [False] * handoffs + [True]
    assert all(giver.released_at <= taker.granted_at for giver, taker in pairwise(in_order))


def test_a_hand_off_is_from_release_to_grant() -> None:
    tally = Tally()
    tally.add(
        [
            Turn(granted_at=0.0, released_at=0.050, waited_cpu=0.9),
            Turn(granted_at=0.053, released_at=0.103, waited_cpu=0.001),
            Turn(granted_at=0.108, released_at=0.0, waited_cpu=0.003),
        ],
        requests=24,
    )
    figures = {figure.metric: figure for figure in tally.measurements("ours")}
    assert {metric: pytest.approx(figure.value) for metric, figure in figures.items()} == {
        "p50": 4.0,
        "p99": 4.98,
        "max": 5.0,
        "requests": 12.0,
        "waiter CPU": 2.0,  # of the waiters only: the first one did not wait
        "hand-offs": 2,
    }
    assert {figure.samples for figure in figures.values()} == {2}


def test_games_add_up() -> None:
    tally = Tally()
    for wait in (0.001, 0.003):
        tally.add([Turn(0, 1.0, 0), Turn(1.0 + wait, 0, 0)], requests=10)
    figures = {figure.metric: figure.value for figure in tally.measurements("ours")}
    assert figures["p50"] == pytest.approx(2.0)
    assert figures["requests"] == 10


@pytest.mark.parametrize(("seconds", "expected"), [(0.01, 25), (0.125, 12), (1.0, 2), (9.0, 2)])
def test_slow_locks_play_fewer_hand_offs(seconds: float, expected: int) -> None:
    assert fitting(seconds, budget=1.5, most=25) == expected
