"""The kinds of errors that a run can reveal, and their text."""

from __future__ import annotations

import dataclasses
import enum


class Kind(enum.Enum):
    """The kind of an error."""

    LOST = "accepted but lost"
    FORKED = "two writes with the same predecessor"
    PHANTOM = "refused or never made, but stored"
    UNCHECKED = "forbidden but not refused"
    TWICE = "there twice"
    TORN = "a part of a transaction"
    MISCOUNTED = "count differs from the number of writes"
    OVERLAP = "two holders of one lock"
    OUTDATED = "stale read under a lock"
    OVERTAKEN = "waiter overtaken"
    LATE = "result later than guaranteed"
    STUCK = "never ended"
    CRASHED = "unexpected error"
    LEAK = "resource leak"
    EARLY = "a job ran before or without its commit"
    DISORDERED = "jobs of a user out of order"
    TOGETHER = "a job run twice at once, though claimed"
    LEFT = "left after all jobs should have run"
    ORPHAN = "left of a deleted tree"
    STRAY = "of one namespace, seen in another"
    CLAIM = "a claim without its value, or a value without its claim"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One error.

    Attributes:
        about: the id of the write, the attempt or the process.
        place: the lock or the entity, if any, whose history is relevant.
        at: its time in seconds on the machine's clock, if known.
    """

    kind: Kind
    about: str
    detail: str
    place: str = ""
    at: float | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.about} ({self.detail})"
