"""The order in which this process takes locks, and where it does so the other way round.

Two requests that take the same two locks in different orders wait for each
other as soon as they meet, which may be once in a year. That the code *can*
do so shows long before: in the order graph, which has an edge from each lock
to those that were taken while it was held, with the places in the code.

    request 1   takes a, then b            edge a → b
    request 2   takes b, then a            edge b → a: a circle; report both places

The canonical order is that of the lock ids as strings; `global_locks` takes
them so. Whoever keeps to it is never reported: every circle has a step that
goes against it, and that is the one to mend. Such a step is reported even if
nobody has been seen to take the two in order.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from types import CodeType

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
        self._edges: dict[tuple[str, str], None] = {}
        self._reported: set[tuple[Taken, Taken, bool]] = set()
        _all.add(self)

    def _after_fork(self) -> None:
        """A lock that another thread held at the fork would stay locked in the child."""
        self._mutex = threading.Lock()

    def note(
        self, held: Iterable[tuple[str, Taken]], lock_id: str, taken: Taken
    ) -> list[OutOfOrder]:
        """A lock is about to be taken while others are held.

        Args:
            held: the locks that are held, and where they were taken.
            lock_id: the one that is wanted.
            taken: where.

        Returns:
            What to report: each pair of places once, and once more when it turns out that
            somebody does take the locks the other way round.
        """
        reports = []
        with self._mutex:
            for other, other_taken in held:
                if other == lock_id:
                    continue  # held by a scope around this one
                if other > lock_id:
                    report = self._judge(other, other_taken, lock_id, taken)
                    if report is not None:
                        reports.append(report)
                self._add(other, lock_id, taken)
        return reports

    def _judge(self, held: str, held_at: Taken, wanted: str, taken: Taken) -> OutOfOrder | None:
        met, opposite = self._path(wanted, held)
        key = (held_at, taken, met)
        if key in self._reported or len(self._reported) >= _MOST_REPORTS:
            return None
        self._reported.add(key)
        if met:
            self._reported.add((held_at, taken, False))  # that says less
        return OutOfOrder(
            wanted,
            held,
            describe(taken),
            describe(held_at),
            describe(opposite) if met else "",
        )

    def _path(self, start: str, goal: str) -> tuple[bool, Taken]:
        """Whether a way leads from `start` to `goal`, and where its last step was taken."""
        seen = {start}
        todo = [start]
        for _ in range(_MOST_STEPS):
            if not todo:
                break
            for following, taken in self._after.get(todo.pop(), {}).items():
                if following == goal:
                    return True, taken
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        return False, None

    def _add(self, held: str, wanted: str, taken: Taken) -> None:
        self._after.setdefault(held, {})[wanted] = taken
        self._edges[held, wanted] = None
        if len(self._edges) > _MOST_EDGES:
            oldest = next(iter(self._edges))
            del self._edges[oldest]
            del self._after[oldest[0]][oldest[1]]
            if not self._after[oldest[0]]:
                del self._after[oldest[0]]


def describe(taken: Taken) -> str:
    """A place in the code, for people."""
    if taken is None:
        return "a place that was not noted"
    code, instruction = taken
    line = next(
        (line for start, end, line in code.co_lines() if start <= instruction < end and line),
        code.co_firstlineno,
    )
    return f"{code.co_filename}:{line} in {code.co_qualname}"


_all: weakref.WeakSet[OrderGraph] = weakref.WeakSet()


def _after_fork() -> None:
    for graph in list(_all):
        graph._after_fork()


os.register_at_fork(after_in_child=_after_fork)
