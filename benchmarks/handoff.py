"""Hand-off: how soon a waiter in another process has the lock that is given back.

Two processes, a real memcached, nothing pinned: as under gunicorn. The time
runs from the beginning of the release to the return of the waiter's acquire,
so it holds the release's own round trip, the waiter's poll delay, and its
grant. `players.py` says how the two take turns.

memcached does not tell when a key is deleted, so the time depends on how often
a waiter asks, and its price is what it asks: operations that memcached counted,
acquire and release included (two), and the waiter's processor time.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from benchmarks.figures import Measurement, Section, Table, percentile
from benchmarks.players import LOCKS, Turn, pair
from benchmarks.server import memcached

HOLD_SECONDS = 0.05


@dataclass(slots=True)
class Tally:
    """What the games of one contender came to. Times in seconds."""

    seconds: list[float] = field(default_factory=list)
    waiter_cpu: list[float] = field(default_factory=list)
    operations: int = 0

    def add(self, turns: Sequence[Turn], operations: int) -> None:
        """Count one game in."""
        for giver, taker in pairwise(turns):
            self.seconds.append(taker.granted_at - giver.released_at)
            self.waiter_cpu.append(taker.waited_cpu)
        self.operations += operations

    def measurements(self, contender: str) -> tuple[Measurement, ...]:
        """As figures."""
        count = len(self.seconds)
        figures = (
            ("p50", percentile(self.seconds, 50) * 1000, "ms"),
            ("p99", percentile(self.seconds, 99) * 1000, "ms"),
            ("max", max(self.seconds) * 1000, "ms"),
            ("operations", self.operations / count, "operations"),
            ("waiter CPU", statistics.fmean(self.waiter_cpu) * 1000, "ms"),
        )
        return tuple(
            Measurement(contender=contender, metric=metric, value=value, unit=unit, samples=count)
            for metric, value, unit in figures
        )


def run(*, quick: bool) -> Section:
    """Measure; about 20 seconds for each contender, or 4 if `quick`."""
    games, handoffs = (2, 20) if quick else (12, 25)
    tallies = {name: Tally() for name in LOCKS}
    random = Random()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(memcached())
        pairs = {name: stack.enter_context(pair(name, server.address)) for name in LOCKS}
        for players in pairs.values():  # imports, connections
            players.play(handoffs=2, hold=0.01)
        for _ in range(games):
            for name in random.sample(list(LOCKS), len(LOCKS)):
                before = server.operations()
                turns = pairs[name].play(handoffs=handoffs, hold=HOLD_SECONDS)
                tallies[name].add(turns, server.operations() - before)
    return Section(
        name="handoff",
        title="Hand-off under contention",
        method=(
            "Two processes hold one lock in turn, the other one waits: from the release by one to "
            "the grant to the other; memcached operations and the waiter's CPU time per hand-off."
        ),
        tables=(
            Table(
                title=f"holds of {HOLD_SECONDS * 1000:.0f} ms, {games * handoffs} hand-offs",
                measurements=tuple(
                    figure for name, tally in tallies.items() for figure in tally.measurements(name)
                ),
            ),
        ),
    )
