"""Drive time by hand in tests."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from userlock.clock import Signal


class ManualClock:
    """A clock that moves only by `advance`, `sleep` and `wait`, which return at once.

    Actions that are planned with `after` run when their time passes.

    Attributes:
        sleeps: every sleep that was asked for, in seconds.
    """

    def __init__(self) -> None:
        self._now = 1000.0
        self._wall = 1_700_000_000.0
        self._plans: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall + self._now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        # A visible step at least: a caller that sleeps off a rounding error would never end.
        self.advance(max(seconds, 1e-6))

    def wait(self, signal: Signal, seconds: float) -> None:
        """Sleep until the signal comes, or for that long."""
        if signal.rung:
            return
        self.sleeps.append(seconds)
        target = self._now + max(seconds, 1e-6)
        while not signal.rung and self._plans and self._plans[0][0] <= target:
            self.advance(max(self._plans[0][0] - self._now, 0.0))
        if not signal.rung:
            self.advance(target - self._now)

    def advance(self, seconds: float) -> None:
        """Let time pass, and run the actions that are planned for it."""
        target = self._now + seconds
        while self._plans and self._plans[0][0] <= target:
            when, _, action = heapq.heappop(self._plans)
            self._now = max(self._now, when)
            action()
        self._now = max(self._now, target)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run an action when that much time has passed."""
        heapq.heappush(self._plans, (self._now + seconds, next(self._order), action))
