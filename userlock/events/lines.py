"""Events as log lines."""

from __future__ import annotations

import logging
from collections.abc import Callable

from userlock.events.types import (
    Acquired,
    BlindOverwrite,
    Broken,
    Confirmed,
    Conflict,
    Contended,
    Deadlock,
    Degraded,
    Event,
    Extended,
    LeaseLost,
    OutOfOrder,
    Released,
    StaleObject,
    StaleWrite,
    TimedOut,
    Unavailable,
    Violation,
)
from userlock.sites import FACTS_KEY, facts_of
from userlock.words import counted

log = logging.getLogger("userlock")


def log_event(event: Event) -> None:
    """The default listener: one log line an event, its facts in `extra["userlock"]`.

    Locks that were free and waits that begin are logged at DEBUG, waits that
    ended with the lock at INFO, and whatever somebody should look at, at WARNING:
    of violations that are not raised, the first of each put site.
    """
    describe = _LINES.get(type(event))
    if describe is None:
        return
    level, line = describe(event)
    if log.isEnabledFor(level):
        log.log(level, *line, extra={"userlock": event, **_extra(event)})


def _extra(event: Event) -> dict[str, object]:
    """Return the fields by which `userlock baseline` finds a site in a structured log."""
    if not isinstance(event, Violation):
        return {}
    facts = {FACTS_KEY: facts_of(event.error)}
    # Google's handlers pass on what is in `json_fields`; other JSON formatters every extra.
    return {**facts, "json_fields": facts}


_Line = tuple[int, tuple[object, ...]]


def _acquired(event: Acquired) -> _Line:
    if not event.in_the_way:
        return logging.DEBUG, ("lock %r acquired", event.lock_id)
    return logging.INFO, (
        "lock %r acquired after %.0f ms and %s (%s); in the way: %s",
        event.lock_id,
        event.waited_seconds * 1000,
        counted(event.attempts, "attempt"),
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


def _once(count: int) -> int:
    """The level of what is logged once for each put site."""
    return logging.WARNING if count == 1 else logging.DEBUG


def _times(count: int) -> str:
    return "" if count == 1 else f", {count} times by now"


def _violation(event: Violation) -> _Line:
    name = type(event.error).__name__
    if event.enforced:
        return logging.WARNING, ("%s: %s", name, event.error)
    if event.count == 1:
        return logging.WARNING, (
            "%s: %s\n  This put site is logged once; userlock.violations() counts the others.",
            name,
            event.error,
        )
    return logging.DEBUG, ("%s%s: %s", name, _times(event.count), event.error)


def _stale_write(event: StaleWrite) -> _Line:
    return logging.WARNING, ("stale write refused: %s", event.error)


def _blind_overwrite(event: BlindOverwrite) -> _Line:
    error = event.error
    return _once(event.count), (
        "blind overwrite%s: %r exists, and a new object was put over it at %s",
        _times(event.count),
        error.key,
        error.put_at or "a place not captured",
    )


def _stale_object(event: StaleObject) -> _Line:
    level = logging.WARNING if event.enforced else _once(event.count)
    return level, ("stale object%s: %s", _times(event.count), event.error)


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
    BlindOverwrite: _blind_overwrite,
    StaleObject: _stale_object,
}
