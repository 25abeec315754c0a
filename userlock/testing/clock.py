"""A clock for tests, driven by hand."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class ManualClock:
    """A clock that moves only when it is told to, or slept on.

    `sleep` moves time at once and carries out, on the way, what `after` has put
    down for the times that pass.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._wall = 1_700_000_000.0
        self._plans: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        #: Every sleep that was asked for, in seconds.
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        # At least by what can be seen, as every sleep does; or who waits for
        # what is left of a rounding error would do so for ever.
        self.advance(max(seconds, 1e-6))

    def advance(self, seconds: float) -> None:
        """Let time pass, and what was planned for it happen."""
        target = self._now + seconds
        while self._plans and self._plans[0][0] <= target:
            when, _, action = heapq.heappop(self._plans)
            self._now = max(self._now, when)
            action()
        self._now = max(self._now, target)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Plan `action` for when that much time has passed."""
        heapq.heappush(self._plans, (self._now + seconds, next(self._order), action))
