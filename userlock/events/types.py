"""Events as plain facts."""

from __future__ import annotations

import dataclasses

from userlock.errors import StaleObjectUsed, StaleWriteError, WriteViolation


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Base of all events.

    Attributes:
        lock_id: the lock concerned.
    """

    lock_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Acquired(Event):
    """A lock was taken.

    Attributes:
        priority: "interactive" or "batch".
        waited_seconds: from the call to the grant.
        attempts: how often the store was asked.
        in_the_way: who held it at first, in words; empty when nobody did.
        degraded: taken without the store's word, because it did not answer.
    """

    priority: str
    waited_seconds: float
    attempts: int
    in_the_way: str
    degraded: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Contended(Event):
    """A lock is held by somebody else, and the caller begins to wait."""

    priority: str
    in_the_way: str


@dataclasses.dataclass(frozen=True, slots=True)
class TimedOut(Event):
    """The caller gave up waiting."""

    priority: str
    waited_seconds: float
    in_the_way: str


@dataclasses.dataclass(frozen=True, slots=True)
class Degraded(Event):
    """The store did not answer; the caller carries on without its word.

    Attributes:
        reason: why it did not answer, in words.
        fallback: whether the lock was taken in the fallback store instead, which keeps out those
            who have to go there as well.
    """

    reason: str
    fallback: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Unavailable(Event):
    """The store did not answer, and the policy is to fail: the caller got an error.

    Attributes:
        reason: why it did not answer, in words.
    """

    priority: str
    waited_seconds: float
    in_the_way: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Deadlock(Event):
    """The caller gave way in a circle of waiters, and got `DeadlockDetected`.

    Attributes:
        circle: each lock in it with who holds it, in words.
    """

    priority: str
    waited_seconds: float
    in_the_way: str
    circle: str


@dataclasses.dataclass(frozen=True, slots=True)
class Confirmed(Event):
    """The store answers again, and a lock that was taken without its word is ours.

    Attributes:
        degraded_seconds: for how long it was held without.
    """

    degraded_seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict(Event):
    """The store answers again, and a lock that was taken without its word is another's.

    Both work under it. What one of them writes on an outdated read is refused
    at the commit.
    """

    holder: str


@dataclasses.dataclass(frozen=True, slots=True)
class Extended(Event):
    """A lease was given a new end, by a heartbeat or by hand.

    Attributes:
        seconds: how long it runs from now on.
    """

    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Broken(Event):
    """An operator ended somebody's lease.

    Attributes:
        holder: whose it was, in words.
        by: who broke it.
    """

    holder: str
    by: str


@dataclasses.dataclass(frozen=True, slots=True)
class OutOfOrder(Event):
    """A second lock was taken in another order than elsewhere: one day two requests will meet.

    Attributes:
        held_lock_id: the lock that was held already.
        taken_at: where `lock_id` was taken.
        held_at: where the other one had been taken.
        opposite_at: where this process took them the other way round; empty if it has not been
            seen to, and only their names' order says that others may.
    """

    held_lock_id: str
    taken_at: str
    held_at: str
    opposite_at: str


@dataclasses.dataclass(frozen=True, slots=True)
class Released(Event):
    """A lock was given back.

    Attributes:
        held_seconds: from the grant to the release.
        outcome: "released", "released (degraded)", or "left (not confirmed)" when the store did
            not answer: the lease then ends by itself, or is given back when the store answers
            this process again.
    """

    held_seconds: float
    outcome: str


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseLost(Event):
    """A lease turned out not to be ours any more: at a heartbeat, an extension or the release.

    Attributes:
        how: in words: it ran out, was evicted or forgotten, or was taken by somebody.
    """

    held_seconds: float
    how: str


@dataclasses.dataclass(frozen=True, slots=True)
class Violation(Event):
    """A write slipped past its lock (also when enforcement only logs it).

    Attributes:
        error: what is raised, or would be.
        enforced: whether it is raised.
        count: how many of its put site there have been in this process, with this one.
    """

    error: WriteViolation
    enforced: bool
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class StaleWrite(Event):
    """A write was refused at the Datastore commit."""

    error: StaleWriteError


@dataclasses.dataclass(frozen=True, slots=True)
class BlindOverwrite(Event):
    """A new object was put over an entity that exists, and has overwritten it.

    Attributes:
        error: what would have been raised.
        count: how many of its put site there have been in this process, with this one.
    """

    error: StaleWriteError
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class StaleObject(Event):
    """An attribute was read from an object that is out of date.

    Attributes:
        error: what is raised, or would be.
        enforced: whether it is raised. If not, this is said once of each object.
        count: how many there have been at that place in this process, with this one.
    """

    error: StaleObjectUsed
    enforced: bool
    count: int = 1
