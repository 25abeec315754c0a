"""What happened, as plain facts, and who is told.

A listener is any callable that takes an event. A listener that raises is
logged and otherwise ignored: nothing that watches the lock can break it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable

from userlock.errors import StaleWriteError, WriteViolation

log = logging.getLogger("userlock")


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
    """The store did not answer, and the policy is to fail: the caller got an error."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Deadlock(Event):
    """The caller gave way in a circle of waiters, and got `DeadlockDetected`.

    Attributes:
        circle: each lock in it with who holds it, in words.
    """

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
    """A write slipped past its lock (also when enforcement only logs it)."""

    error: WriteViolation
    enforced: bool


@dataclasses.dataclass(frozen=True, slots=True)
class StaleWrite(Event):
    """A write was refused at the Datastore commit."""

    error: StaleWriteError


Listener = Callable[[Event], None]


class Listeners:
    """A list of listeners, told one after the other."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners: tuple[Listener, ...] = tuple(listeners)
        self._only_logged = self._listeners == (log_event,)

    def add(self, listener: Listener) -> None:
        """Tell `listener` of every event from now on."""
        self._listeners = (*self._listeners, listener)
        self._only_logged = self._listeners == (log_event,)

    def watched(self) -> bool:
        """Whether anybody would see an event of DEBUG level. Events of each lock are not even
        made when nobody does."""
        return not self._only_logged or log.isEnabledFor(logging.DEBUG)

    def emit(self, event: Event) -> None:
        """Tell everybody. Never raises what a listener raises."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a userlock listener failed on %s", type(event).__name__)


def log_event(event: Event) -> None:
    """The default listener: one log line an event, its facts in `extra["userlock"]`.

    Locks that were free and waits that begin are logged at DEBUG, waits that
    ended with the lock at INFO, and whatever somebody should look at, at WARNING.
    """
    describe = _LINES.get(type(event))
    if describe is None:
        return
    level, line = describe(event)
    if log.isEnabledFor(level):
        log.log(level, *line, extra={"userlock": event})


_Line = tuple[int, tuple[object, ...]]


def _acquired(event: Acquired) -> _Line:
    if not event.in_the_way:
        return logging.DEBUG, ("lock %r acquired", event.lock_id)
    return logging.INFO, (
        "lock %r acquired after %.0f ms and %d attempts (%s); in the way: %s",
        event.lock_id,
        event.waited_seconds * 1000,
        event.attempts,
        event.priority,
        event.in_the_way,
    )


def _contended(event: Contended) -> _Line:
    return logging.DEBUG, (
        "lock %r contended (%s waits); in the way: %s",
        event.lock_id,
        event.priority,
        event.in_the_way,
    )


def _timed_out(event: TimedOut) -> _Line:
    return logging.WARNING, (
        "lock %r not acquired: gave up after %.1f s (%s); in the way: %s",
        event.lock_id,
        event.waited_seconds,
        event.priority,
        event.in_the_way,
    )


def _degraded(event: Degraded) -> _Line:
    return logging.WARNING, (
        "lock %r degraded: %s, the lease store does not answer (%s); "
        "stale writes are still refused at the commit",
        event.lock_id,
        "taken in the fallback store" if event.fallback else "carrying on without it",
        event.reason,
    )


def _released(event: Released) -> _Line:
    return logging.DEBUG, (
        "lock %r %s after %.0f ms",
        event.lock_id,
        event.outcome,
        event.held_seconds * 1000,
    )


def _lost(event: LeaseLost) -> _Line:
    return logging.WARNING, (
        "lock %r was lost while it was held (%.0f ms): %s",
        event.lock_id,
        event.held_seconds * 1000,
        event.how,
    )


def _violation(event: Violation) -> _Line:
    return logging.WARNING, ("%s: %s", type(event.error).__name__, event.error)


def _stale_write(event: StaleWrite) -> _Line:
    return logging.WARNING, ("stale write refused: %s", event.error)


def _unavailable(event: Unavailable) -> _Line:
    return logging.WARNING, (
        "lock %r not acquired: the lease store does not answer (%s)",
        event.lock_id,
        event.reason,
    )


def _deadlock(event: Deadlock) -> _Line:
    return logging.WARNING, (
        "lock %r not acquired: waiting for it would never end (%s)",
        event.lock_id,
        event.circle,
    )


def _confirmed(event: Confirmed) -> _Line:
    return logging.INFO, (
        "lock %r confirmed: the lease store answers again after %.1f s",
        event.lock_id,
        event.degraded_seconds,
    )


def _conflict(event: Conflict) -> _Line:
    return logging.WARNING, (
        "lock %r is in conflict: taken while the lease store did not answer, and held by %s; "
        "stale writes are refused at the commit",
        event.lock_id,
        event.holder,
    )


def _extended(event: Extended) -> _Line:
    return logging.DEBUG, ("lock %r extended by %g s", event.lock_id, event.seconds)


def _broken(event: Broken) -> _Line:
    return logging.WARNING, (
        "lock %r broken by %s; it was held by %s",
        event.lock_id,
        event.by,
        event.holder,
    )


def _out_of_order(event: OutOfOrder) -> _Line:
    seen = f"; the other way round at {event.opposite_at}" if event.opposite_at else ""
    return logging.WARNING, (
        "lock %r taken out of order at %s, while %r is held, taken at %s%s: two requests that "
        "do this in different orders wait for each other. Use global_locks([...])",
        event.lock_id,
        event.taken_at,
        event.held_lock_id,
        event.held_at,
        seen,
    )


_LINES: dict[type[Event], Callable[..., _Line]] = {
    Acquired: _acquired,
    Contended: _contended,
    TimedOut: _timed_out,
    Degraded: _degraded,
    Unavailable: _unavailable,
    Deadlock: _deadlock,
    Confirmed: _confirmed,
    Conflict: _conflict,
    Extended: _extended,
    Broken: _broken,
    OutOfOrder: _out_of_order,
    Released: _released,
    LeaseLost: _lost,
    Violation: _violation,
    StaleWrite: _stale_write,
}

#: Told by the model layer as well as by every lock service.
LISTENERS = Listeners([log_event])
