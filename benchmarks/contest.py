"""The result of many waiters contending for one lock: shares, waits, and mutual exclusion.

All times are in seconds of the monotonic clock, which is the same in all processes of a machine.
The course of a visit:

    asked_at ── waits ── granted_at ── the section ── released_at

`granted_at` is read after acquire has returned, `released_at` before release is called. Two visits
that overlap by these times were in the section at once, whatever the state of the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Visit(NamedTuple):
    """One visit to the section."""

    asked_at: float
    granted_at: float
    released_at: float

    @property
    def waited(self) -> float:
        return self.granted_at - self.asked_at


class Refusal(NamedTuple):
    """A wait that ended without the lock: timed out, or still waiting at the end."""

    asked_at: float
    ended_at: float

    @property
    def waited(self) -> float:
        return self.ended_at - self.asked_at


@dataclass(slots=True)
class Diary:
    """The record of one waiter.

    Attributes:
        visits, refusals: in order.
        stuck: it still waited when no other waiter was left.
        error: the lock's exception, which ended the waiter.
    """

    visits: list[Visit] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    stuck: bool = False
    error: str | None = None


class ExclusionViolated(Exception):
    """One of our own locks let two into the section at once."""


class Overlap(NamedTuple):
    """Two visits that were in the section at once, and the overlap in seconds."""

    first: Visit
    second: Visit
    seconds: float


def overlaps(visits: Sequence[Visit]) -> list[Overlap]:
    """Return each visit that began before an earlier one ended, with the one that ended last."""
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
    """The records of all waiters, and the window of time that counts.

    Waiters also run before the window opens and, until each has had its last grant, after it has
    closed. Mutual exclusion is checked throughout.
    """

    opened_at: float
    closed_at: float
    diaries: Sequence[Diary]

    @property
    def seconds(self) -> float:
        return self.closed_at - self.opened_at

    def acquisitions(self) -> list[int]:
        """Return each waiter's number of grants within the window."""
        return [sum(self._counts(visit) for visit in diary.visits) for diary in self.diaries]

    def share(self) -> float:
        """Return the share of the window with a visitor in the section, by the visitors' own times.

        The serial ideal, sections back to back, is 1. The measured length of the sections counts,
        so a sleep that the system makes too long is not attributed to the lock.
        """
        busy = sum(
            max(0.0, min(visit.released_at, self.closed_at) - max(visit.granted_at, self.opened_at))
            for diary in self.diaries
            for visit in diary.visits
        )
        return busy / self.seconds

    def waits(self) -> list[float]:
        """Return all waits that overlap the window, in seconds, whatever their end.

        Waits that are open when the window closes are followed to their end. Otherwise a starved
        waiter would not be seen. A wait that timed out counts with the time until then.
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
        """Return the longest of `waits`; 0 if there are none."""
        return max(self.waits(), default=0.0)

    def timeouts(self) -> int:
        """Return the number of waits that ended without the lock."""
        return sum(len(diary.refusals) for diary in self.diaries)

    def errors(self) -> list[str]:
        """Return the locks' exceptions."""
        return [diary.error for diary in self.diaries if diary.error is not None]

    def overlaps(self) -> list[Overlap]:
        """Return the visits that were in the section at once."""
        return overlaps([visit for diary in self.diaries for visit in diary.visits])

    def _counts(self, visit: Visit) -> bool:
        return self.opened_at <= visit.granted_at < self.closed_at
