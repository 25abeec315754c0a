"""The history of the attempts at a lock, and an independent check of fairness.

It does not depend on records, versions or queues. It only uses the times of each attempt's begin,
first known position in the queue, grant and release. All times are in seconds of one clock.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
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


#: The time by which batch may notice late that it has aged, in seconds.
_POLL_SECONDS = 0.3


class Unfair(AssertionError):
    """A violation in a history."""


def check(
    history: Sequence[Attempt],
    *,
    store_seconds: float,
    ages_after: float | None = None,
) -> None:
    """Check a history.

    Args:
        history: all attempts, of any lock.
        store_seconds: the time that an attempt may take beyond its timeout.
        ages_after: the time after which batch ranks as interactive.

    Raises:
        Unfair: describes the violation.
    """
    for mine in _by_lock(history):
        _check_exclusion(mine)
        _check_order(mine, None if ages_after is None else ages_after + _POLL_SECONDS)
    for attempt in history:
        if attempt.granted is None and attempt.failed is None:
            if not attempt.excused:
                raise Unfair(f"{attempt} never got a result")
        elif not attempt.excused and attempt.waited > attempt.timeout + store_seconds:
            raise Unfair(f"{attempt} waited for {attempt.waited:.3f} s of {attempt.timeout:g}")


def _by_lock(history: Iterable[Attempt]) -> Iterator[list[Attempt]]:
    def lock(attempt: Attempt) -> str:
        return attempt.lock_id

    for _, group in itertools.groupby(sorted(history, key=lock), lock):
        yield list(group)


def _check_exclusion(history: Sequence[Attempt]) -> None:
    held = sorted((a for a in history if a.granted is not None), key=_granted)
    for before, after in itertools.pairwise(held):
        if before.excused and before.released is None:
            continue  # killed; its lease had to expire
        if before.released is None or before.released > _granted(after):
            raise Unfair(f"{before} and {after} hold {before.lock_id} at once")


def _check_order(history: Sequence[Attempt], ages_after: float | None) -> None:
    for attempt, other in overtakings(history, ages_after):
        raise Unfair(f"{attempt} was granted the lock at {attempt.granted:.4f}, before {other}")


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


def write(path: Path, history: Iterable[Attempt]) -> None:
    """Write one line per attempt."""
    path.write_text("".join(json.dumps(dataclasses.asdict(a)) + "\n" for a in history))


def read(paths: Iterable[Path]) -> list[Attempt]:
    """Read the files of several processes."""
    lines = itertools.chain.from_iterable(path.read_text().splitlines() for path in paths)
    return [Attempt(**json.loads(line)) for line in lines]
