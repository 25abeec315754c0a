"""What came of many waiters wanting one lock: shares, waits, and whether it was a lock.

All times are of the monotonic clock, which counts alike in all processes of a
machine, in seconds. A visit goes

    asked_at ── waits ── granted_at ── the section ── released_at

where `granted_at` is read after acquire has returned and `released_at` before
release is called. Two visits that overlap by these times were in the section
at once, whatever the lock believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Visit(NamedTuple):
    """One stay in the section."""

    asked_at: float
    granted_at: float
    released_at: float

    @property
    def waited(self) -> float:
        return self.granted_at - self.asked_at


class Refusal(NamedTuple):
    """A wait that ended without the lock: given up, or not over when all was."""

    asked_at: float
    ended_at: float

    @property
    def waited(self) -> float:
        return self.ended_at - self.asked_at


@dataclass(slots=True)
class Diary:
    """What one waiter has to tell.

    Attributes:
        visits, refusals: in order.
        stuck: it still waited when nobody was left to wait for.
        error: what its lock raised, after which it stopped.
    """

    visits: list[Visit] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    stuck: bool = False
    error: str | None = None


class ExclusionViolated(Exception):
    """Two were in the section at once, with a lock that is ours."""


class Overlap(NamedTuple):
    """Two visits that were in the section at once, and for how long, in seconds."""

    first: Visit
    second: Visit
    seconds: float


def overlaps(visits: Sequence[Visit]) -> list[Overlap]:
    """Each visit that began before an earlier one had ended, with the one that ended last."""
    found = []
    last: Visit | None = None
    for visit in sorted(visits, key=lambda visit: visit.granted_at):
        if last is not None and visit.granted_at < last.released_at:
            both_until = min(last.released_at, visit.released_at)
            found.append(Overlap(last, visit, both_until - visit.granted_at))
        if last is None or visit.released_at > last.released_at:
            last = visit
    return found


@dataclass(frozen=True, slots=True)
class Contest:
    """What all waiters did, and the window of time that counts.

    Waiters run before the window opens and, until each has had its last grant,
    after it has closed. Mutual exclusion is looked at all the time.
    """

    opened_at: float
    closed_at: float
    diaries: Sequence[Diary]

    @property
    def seconds(self) -> float:
        return self.closed_at - self.opened_at

    def acquisitions(self) -> list[int]:
        """How many grants within the window each waiter had."""
        return [sum(self._counts(visit) for visit in diary.visits) for diary in self.diaries]

    def share(self) -> float:
        """How much of the window somebody was in the section, as measured by those who were.

        The serial ideal, sections back to back, is 1. The sections' own measured length counts,
        so a sleep that the system makes longer than asked for is not the lock's fault.
        """
        busy = sum(
            max(0.0, min(visit.released_at, self.closed_at) - max(visit.granted_at, self.opened_at))
            for diary in self.diaries
            for visit in diary.visits
        )
        return busy / self.seconds

    def waits(self) -> list[float]:
        """All waits that touch the window, in seconds, however they ended, and whenever.

        Those who wait when the window closes are followed to the end: a waiter that is starved
        would not be seen among the waits that ended in time. One that was given up counts with
        the time that it took to give up.
        """
        ended: list[Visit | Refusal] = []
        for diary in self.diaries:
            ended += diary.visits
            ended += diary.refusals
        return [
            one.waited
            for one in ended
            if one.asked_at < self.closed_at and one.asked_at + one.waited >= self.opened_at
        ]

    def longest_wait(self) -> float:
        """The longest of `waits`; 0 if there are none."""
        return max(self.waits(), default=0.0)

    def gave_up(self) -> int:
        """How many waits ended without the lock."""
        return sum(len(diary.refusals) for diary in self.diaries)

    def errors(self) -> list[str]:
        """What locks raised."""
        return [diary.error for diary in self.diaries if diary.error is not None]

    def overlaps(self) -> list[Overlap]:
        """Visits that were in the section at once."""
        return overlaps([visit for diary in self.diaries for visit in diary.visits])

    def _counts(self, visit: Visit) -> bool:
        return self.opened_at <= visit.granted_at < self.closed_at
