"""What may be wrong with a trial, and how it is told."""

from __future__ import annotations

import dataclasses
import enum


class Kind(enum.Enum):
    """What may be wrong."""

    LOST = "accepted, and lost"
    FORKED = "two have landed on one"
    PHANTOM = "refused, or never made, and there"
    UNCHECKED = "not allowed, and let through"
    TWICE = "there twice"
    TORN = "a part of a transaction"
    MISCOUNTED = "another count than there are writes"
    OVERLAP = "two hold one lock"
    OUTDATED = "read under a lock, and older than what was written under it before"
    OVERTAKEN = "a waiter was passed"
    LATE = "told later than promised"
    STUCK = "never ended"
    CRASHED = "ended with an error of its own"
    LEAK = "more than there should be"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: what it is.
        about: the id of the write, the attempt or the process that it is about.
        detail: for people.
        place: the lock or the entity that it happened to, if any: whose history to look at.
        at: when, in seconds on the machine's clock, if that is known.
    """

    kind: Kind
    about: str
    detail: str
    place: str = ""
    at: float | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.about} ({self.detail})"
