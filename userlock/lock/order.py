"""The order in which this process takes locks, and where it does so the other way round.

Two requests that take the same two locks in different orders wait for each
other as soon as they meet, which may be once in a year. That the code *can*
do so shows long before: in the order graph, in which ways lead from each lock
to those that were taken while it was held, with the places in the code.

    request 1   takes a, then b            edge a → b
    request 2   takes b, then a            edge b → a: a circle; report both places

The canonical order is that of the lock ids as strings; `global_locks` takes
them so. Whoever keeps to it is never reported: every circle has a step that
goes against it, and that is the one to mend. Such a step is reported even if
nobody has been seen to take the two in order.
"""

from __future__ import annotations

import collections
import os
import threading
import weakref
from collections.abc import Collection, Iterable
from types import CodeType

from userlock.callsite import line_of
from userlock.events import OutOfOrder

#: Code and instruction, as cheap to take down as can be.
Taken = tuple[CodeType, int] | None

_MOST_EDGES = 10_000
_MOST_STEPS = 1_000
_MOST_REPORTS = 1_000


class OrderGraph:
    """Thread-safe. Bounded: old edges are forgotten."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._after: dict[str, dict[str, Taken]] = {}
        # Ordered, because the first of a plain dict is found behind all that were deleted.
        self._edges: collections.OrderedDict[tuple[str, str], None] = collections.OrderedDict()
        self._reported: set[tuple[Taken, Taken, bool]] = set()
        _all.add(self)

    def _after_fork(self) -> None:
        """A lock that another thread held at the fork would stay locked in the child."""
        self._mutex = threading.Lock()

    def note(
        self,
        held: Collection[tuple[str, Taken]],
        lock_id: str,
        taken: Taken,
        *,
        latest: Iterable[str] | None = None,
        again: bool = False,
    ) -> list[OutOfOrder]:
        """A lock is about to be taken while others are held.

        Args:
            held: the locks that are held, and where they were taken. Those below `lock_id` may
                be left out where `latest` is given.
            lock_id: the one that is wanted.
            taken: where.
            latest: those that an edge is needed from, because ways lead to them from all the
                others; by default all of `held`.
            again: whether to report what has been reported before.

        Returns:
            What to report: each pair of places once, and once more when it turns out that
            somebody does take the locks the other way round.
        """
        with self._mutex:
            above = [each for each in held if each[0] > lock_id]
            reports = self._judge(above, lock_id, taken, again)
            for other in [other for other, _ in held] if latest is None else latest:
                if other != lock_id:  # held by a scope around this one
                    self._add(other, lock_id, taken)
        return reports

    def _judge(
        self, above: list[tuple[str, Taken]], wanted: str, taken: Taken, again: bool
    ) -> list[OutOfOrder]:
        reports: list[OutOfOrder] = []
        opposites: dict[str, Taken] | None = None
        for held, held_at in above:
            full = len(self._reported) >= _MOST_REPORTS
            if not again and (full or (held_at, taken, True) in self._reported):
                continue
            if opposites is None:
                opposites = self._reached_from(wanted)
            met = held in opposites
            if not again and (held_at, taken, met) in self._reported:
                continue
            if not full:
                self._reported.add((held_at, taken, met))
                self._reported.add((held_at, taken, False))  # that says less
            opposite = describe(opposites[held]) if met else ""
            reports.append(OutOfOrder(wanted, held, describe(taken), describe(held_at), opposite))
        return reports

    def _reached_from(self, start: str) -> dict[str, Taken]:
        """Return the locks that paths from `start` reach, and the site of the last step to each."""
        reached: dict[str, Taken] = {}
        todo = [start]
        for _ in range(_MOST_STEPS):
            if not todo:
                break
            for following, taken in self._after.get(todo.pop(), {}).items():
                if following not in reached and following != start:
                    reached[following] = taken
                    todo.append(following)
        return reached

    def _add(self, held: str, wanted: str, taken: Taken) -> None:
        self._after.setdefault(held, {})[wanted] = taken
        self._edges[held, wanted] = None
        if len(self._edges) > _MOST_EDGES:
            oldest, _ = self._edges.popitem(last=False)
            del self._after[oldest[0]][oldest[1]]
            if not self._after[oldest[0]]:
                del self._after[oldest[0]]


def describe(taken: Taken) -> str:
    """Return a place in the code, for people."""
    if taken is None:
        return "a place that was not noted"
    code, instruction = taken
    line = line_of(code, instruction)
    return f"{code.co_filename}:{line} in {code.co_qualname}"


_all: weakref.WeakSet[OrderGraph] = weakref.WeakSet()


def _after_fork() -> None:
    for graph in list(_all):
        graph._after_fork()


os.register_at_fork(after_in_child=_after_fork)
