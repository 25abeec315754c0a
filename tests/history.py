"""The history of the attempts at a lock, and an independent check of fairness.

It does not depend on records, versions or queues. It only uses the times of each attempt's begin,
first known position in the queue, grant and release. All times are in seconds of one clock.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator, Sequence
from typing import TypeVar


@dataclasses.dataclass
class Attempt:
    """One attempt at a lock.

    Attributes:
        lock_id: the lock.
        who: the process.
        batch: whether it is batch work.
        began: the time of the request.
        timeout: its longest wait.
        queued: the time when it was known to be queued, if it had to wait.
        granted: the time of the grant, if any.
        released: the begin of the release.
        failed: the time when it was refused or timed out.
        excused: it was paused or killed, so others may overtake it.
    """

    lock_id: str
    who: str
    batch: bool
    began: float
    timeout: float
    queued: float | None = None
    granted: float | None = None
    released: float | None = None
    failed: float | None = None
    excused: bool = False

    @property
    def waited(self) -> float:
        """Return the time until its result."""
        ended = self.granted if self.granted is not None else self.failed
        assert ended is not None
        return ended - self.began

    def __str__(self) -> str:
        kind = "batch" if self.batch else "interactive"
        return f"{kind} of {self.who} (began {self.began:.4f}, queued {self.queued})"


A = TypeVar("A", bound=Attempt)


def overtakings(history: Sequence[A], ages_after: float | None) -> Iterator[tuple[A, A]]:
    """Yield pairs of attempts of which the first overtook the second without permission.

    Each grant is compared with the attempts that were queued before it began.

    Args:
        history: all attempts at the lock. Excused ones may be overtaken.
        ages_after: the time after which batch ranks as interactive, in seconds; None: never.
    """
    waiting: dict[int, A] = {}
    freed = -math.inf  # when the last holder began to release it
    for _, number, attempt, what in sorted(_moments(history), key=lambda moment: moment[:2]):
        if what is _Moment.QUEUED:
            waiting[number] = attempt
            continue
        waiting.pop(number, None)
        if what is _Moment.GRANTED:
            for other in waiting.values():
                if _may_not_pass(attempt, other, ages_after) or _must_stand_back(
                    attempt, other, freed, ages_after
                ):
                    yield attempt, other
            freed = -math.inf if attempt.released is None else attempt.released


class _Moment(enum.Enum):
    QUEUED = enum.auto()
    GRANTED = enum.auto()
    ENDS = enum.auto()


def _moments(history: Sequence[A]) -> Iterator[tuple[float, int, A, _Moment]]:
    for number, attempt in enumerate(history):
        if attempt.queued is not None and not attempt.excused:
            yield attempt.queued, number, attempt, _Moment.QUEUED
        if attempt.granted is not None:
            yield attempt.granted, number, attempt, _Moment.GRANTED
        elif attempt.failed is not None:
            # It may have left the queue before its whole time.
            last = min(attempt.failed, attempt.began + attempt.timeout)
            yield last, number, attempt, _Moment.ENDS


def _may_not_pass(attempt: Attempt, other: Attempt, ages_after: float | None) -> bool:
    assert other.queued is not None
    if attempt.began <= other.queued:
        return False  # neither was certainly first
    if other.batch and not attempt.batch:
        return ages_after is not None and attempt.began > other.began + ages_after
    return True


def _must_stand_back(
    attempt: Attempt, other: Attempt, freed: float, ages_after: float | None
) -> bool:
    """Return whether batch must let an interactive request go first that was queued when the lock
    became free."""
    assert other.queued is not None
    if not attempt.batch or other.batch or other.queued >= freed:
        return False
    return ages_after is None or attempt.waited < ages_after


def _granted(attempt: Attempt) -> float:
    assert attempt.granted is not None
    return attempt.granted


# --- across processes -----------------------------------------------------------------------
