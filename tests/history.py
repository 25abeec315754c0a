"""What happened to each attempt at a lock, and an independent check that it was fair.

It knows nothing of records, versions or lines: only when each attempt began,
when it was known to stand in line, when it was granted and released. All
times are in seconds on one clock.
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
        lock_id: which lock.
        who: the process.
        batch: its priority.
        began: when it was asked for.
        timeout: for how long it was to wait at most.
        stood: when it was known to stand in line, if it had to.
        granted: when it had the lock, if it got it.
        released: when it began to give it back.
        failed: when it was told that it could not have it.
        excused: it was paused or killed: others may go past it.
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
        """For how long it waited until it was told anything."""
        ended = self.granted if self.granted is not None else self.failed
        assert ended is not None
        return ended - self.began

    def __str__(self) -> str:
        kind = "batch" if self.batch else "a person"
        return f"{kind} of {self.who} (began {self.began:.4f}, stood {self.queued})"


#: How much later than it is due batch may notice that it ranks with people, in seconds.
_LOOK_SECONDS = 0.3


class Unfair(AssertionError):
    """What was found in a history that must not be there."""


def check(
    history: Sequence[Attempt],
    *,
    store_seconds: float,
    ages_after: float | None = None,
) -> None:
    """Check a history.

    Args:
        history: all attempts, of any lock.
        store_seconds: for how much longer than its time-out an attempt may take.
        ages_after: when batch is said to rank with people.

    Raises:
        Unfair: says what is wrong.
    """
    for mine in _by_lock(history):
        _check_exclusion(mine)
        _check_order(mine, None if ages_after is None else ages_after + _LOOK_SECONDS)
    for attempt in history:
        if attempt.granted is None and attempt.failed is None:
            if not attempt.excused:
                raise Unfair(f"{attempt} was never told anything")
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
            continue  # killed; its lease had to run out
        if before.released is None or before.released > _granted(after):
            raise Unfair(f"{before} and {after} hold {before.lock_id} at once")


def _check_order(history: Sequence[Attempt], ages_after: float | None) -> None:
    for attempt, other in overtakings(history, ages_after):
        raise Unfair(f"{attempt} was granted the lock at {attempt.granted:.4f}, before {other}")


A = TypeVar("A", bound=Attempt)


def overtakings(history: Sequence[A], ages_after: float | None) -> Iterator[tuple[A, A]]:
    """Who was granted one lock before whom, and should not have been.

    At each grant, look at those who stood in line before it began.

    Args:
        history: all attempts at the lock. Those that are excused may be passed.
        ages_after: when batch ranks with people, in seconds; None: never.
    """
    waiting: dict[int, A] = {}
    freed = -math.inf  # when the last one began to release it
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
            # It may have stood in line no longer for its whole time.
            last = min(attempt.failed, attempt.began + attempt.timeout)
            yield last, number, attempt, _Moment.ENDS


def _may_not_pass(attempt: Attempt, other: Attempt, ages_after: float | None) -> bool:
    assert other.queued is not None
    if attempt.began <= other.queued:
        return False  # neither was surely there first
    if other.batch and not attempt.batch:
        return ages_after is not None and attempt.began > other.began + ages_after
    return True


def _must_stand_back(
    attempt: Attempt, other: Attempt, freed: float, ages_after: float | None
) -> bool:
    """Batch lets people go first who stood in line when the lock became free, however long."""
    assert other.queued is not None
    if not attempt.batch or other.batch or other.queued >= freed:
        return False
    return ages_after is None or attempt.waited < ages_after


def _granted(attempt: Attempt) -> float:
    assert attempt.granted is not None
    return attempt.granted


# --- across processes -----------------------------------------------------------------------


def write(path: Path, history: Iterable[Attempt]) -> None:
    """One line an attempt."""
    path.write_text("".join(json.dumps(dataclasses.asdict(a)) + "\n" for a in history))


def read(paths: Iterable[Path]) -> list[Attempt]:
    """What several processes have written."""
    lines = itertools.chain.from_iterable(path.read_text().splitlines() for path in paths)
    return [Attempt(**json.loads(line)) for line in lines]
