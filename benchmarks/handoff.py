"""Hand-off: the time from a release until a waiter in another process has the lock.

Two processes, a real server, nothing pinned: as under gunicorn. The time runs from the beginning of
the release to the return of the waiter's acquire. It contains the release's own round trip, the
waiter's poll delay, and its grant. `players.py` describes the turns of the two.

memcached does not report the deletion of a key, so the time depends on the waiter's poll interval.
The price of polling is the number of requests that the server counted, acquire and release
included, and the waiter's processor time. Redis can wake waiters: userlock's by a message,
python-redis-lock's in BLPOP. Other locks on Redis poll all the same.

A lock that sleeps for a second between two attempts plays fewer hand-offs, as many as fit the time
of a game. The last column has their number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from benchmarks import locks
from benchmarks.figures import Measurement, Section, Table, percentile
from benchmarks.players import Pair, PlayerDied, Turn, pair
from benchmarks.server import Server

HOLD_SECONDS = 0.05


@dataclass(slots=True)
class Tally:
    """The results of one contender's games. Times in seconds."""

    seconds: list[float] = field(default_factory=list)
    waiter_cpu: list[float] = field(default_factory=list)
    requests: int = 0

    def add(self, turns: Sequence[Turn], requests: int) -> None:
        """Add one game."""
        for giver, taker in pairwise(turns):
            self.seconds.append(taker.granted_at - giver.released_at)
            self.waiter_cpu.append(taker.waited_cpu)
        self.requests += requests

    def measurements(self, contender: str) -> tuple[Measurement, ...]:
        """Return the figures."""
        count = len(self.seconds)
        figures = (
            ("p50", percentile(self.seconds, 50) * 1000, "ms"),
            ("p99", percentile(self.seconds, 99) * 1000, "ms"),
            ("max", max(self.seconds) * 1000, "ms"),
            ("requests", self.requests / count, "requests"),
            ("waiter CPU", statistics.fmean(self.waiter_cpu) * 1000, "ms"),
            ("hand-offs", count, "count"),
        )
        return tuple(
            Measurement(contender=contender, metric=metric, value=value, unit=unit, samples=count)
            for metric, value, unit in figures
        )


def run(*, quick: bool) -> Section:
    """Measure; about 16 seconds for each contender, or 2 if `quick`."""
    games, most, budget = (1, 10, 0.6) if quick else (10, 25, 1.4)
    kinds = locks.present()
    tallies = {kind.name: Tally() for kind in kinds}
    failures: dict[str, str] = {}
    random = Random()
    with locks.servers_for(kinds) as servers, pair() as players:
        handoffs: dict[str, int] = {}
        for number in range(games + 1):
            for kind in random.sample(kinds, len(kinds)):
                if kind.name in failures:
                    continue
                server = servers[kind.store]
                try:
                    if not number:  # imports, connections, and the number of hand-offs per game
                        seconds = _warm_up(players, kind, server)
                        handoffs[kind.name] = fitting(seconds, budget, most)
                        continue
                    before = server.requests()
                    turns = players.play(
                        kind, server.address, handoffs=handoffs[kind.name], hold=HOLD_SECONDS
                    )
                    tallies[kind.name].add(turns, server.requests() - before)
                except PlayerDied as error:
                    if kind.ours:
                        raise
                    failures[kind.name] = str(error)
    return Section(
        name="handoff",
        title="Hand-off under contention",
        method=(
            "Two processes hold one lock in turn while the other one waits: from the release to "
            "the next grant; requests that the server executed and the waiter's CPU "
            f"time per hand-off. Games per lock, in random order: {games}."
        ),
        tables=(
            Table(
                title=f"holds of {HOLD_SECONDS * 1000:.0f} ms",
                measurements=tuple(
                    figure
                    for kind in kinds
                    if kind.name not in failures
                    for figure in tallies[kind.name].measurements(kind.name)
                ),
            ),
        ),
        notes=(
            "Each hold is of the same length, so that a lock that polls every 0.1 s finds this one "
            "free 50 ms late each time; of holds of any length it would be 0 to 100 ms late.",
            *(f"{name} failed: {why}" for name, why in failures.items()),
            *locks.missing(),
            locks.defaults_of(kinds),
        ),
    )


def fitting(seconds: float, budget: float, most: int) -> int:
    """Return how many hand-offs of `seconds` fit into `budget` seconds: from 2 to `most`."""
    return max(2, min(most, int(budget / seconds)))


def _warm_up(players: Pair, kind: locks.Kind, server: Server) -> float:
    """Play a first game. Return the time of a hand-off, with its hold."""
    players.play(kind, server.address, handoffs=1, hold=0.01)
    began = time.monotonic()
    players.play(kind, server.address, handoffs=2, hold=HOLD_SECONDS)
    return (time.monotonic() - began) / 2
