"""Events as plain facts, each with its log line, and the listeners that get them.

A listener is any callable that takes an event. A listener that raises is
logged and otherwise ignored: an observer cannot break the lock.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from typing import ClassVar

from userlock.errors import StaleWriteError, WriteViolation
from userlock.ids import quoted
from userlock.sites import FACTS_KEY, facts_of
from userlock.words import counted, escaped, owner_in

log = logging.getLogger("userlock")

#: A level, a template, and its arguments.
LogLine = tuple[int, str, *tuple[object, ...]]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Event:
    """Base of all events.

    Attributes:
        lock_id: the lock concerned, as it is. Log lines and `repr` show it as configured.
    """

    lock_id: str | None
    #: The level and the template of the log line; of the lock, and the fields that follow it there.
    _logged: ClassVar[tuple[int, str, *tuple[str, ...]] | None] = None

    @property
    def _lock(self) -> str:
        """Return the lock for a log line."""
        return "not known" if self.lock_id is None else quoted(self.lock_id)

    def __repr__(self) -> str:
        # A formatter may write all extras of a record, the event among them.
        names = [field.name for field in dataclasses.fields(self) if field.name != "lock_id"]
        rest = "".join(f", {name}={getattr(self, name)!r}" for name in names)
        return f"{type(self).__name__}(lock_id={self._lock}{rest})"

    def log_line(self) -> LogLine | None:
        """Return the level, template and arguments of the event's log line, if it has one.

        A free lock and the begin of a wait are logged at DEBUG, the end of a
        wait with the lock at INFO. WARNING is for events that need attention.
        """
        if self._logged is None:
            return None
        level, line, *names = self._logged
        return level, line, self._lock, *(getattr(self, name) for name in names)


# --- locks ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Acquired(Event):
    """A lock was taken.

    Attributes:
        priority: "interactive" or "batch".
        waited_seconds: from the call to the grant.
        attempts: the number of requests to the store.
        blocked_by: the first holder met, described; empty if the lock was free.
        degraded: taken without the store, because it did not answer.
    """

    priority: str
    waited_seconds: float
    attempts: int
    blocked_by: str
    degraded: bool

    def log_line(self) -> LogLine:
        if not self.blocked_by:
            return logging.DEBUG, "lock %s acquired", self._lock
        facts = self.waited_seconds * 1000, counted(self.attempts, "attempt"), self.priority
        line = "lock %s acquired after %.0f ms and %s (%s); blocked by: %s"
        return logging.INFO, line, self._lock, *facts, self.blocked_by


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Contended(Event):
    """A lock is held by somebody else, and the caller begins to wait."""

    priority: str
    blocked_by: str
    _line = "lock %s contended (%s waits); blocked by: %s"
    _logged = logging.DEBUG, _line, "priority", "blocked_by"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class _NotAcquired(Event):
    priority: str
    waited_seconds: float
    blocked_by: str


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class TimedOut(_NotAcquired):
    """The caller's wait ended without the lock."""

    _line = "lock %s not acquired: timed out after %.1f s (%s); blocked by: %s"
    _logged = logging.WARNING, _line, "waited_seconds", "priority", "blocked_by"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Rejected(_NotAcquired):
    """The caller got `TooManyWaiting`: enough callers of this process wait for the lock.

    Attributes:
        waiting: the number of these callers.
        count: the number of rejections since callers of this process wait for the lock without
            a break.
    """

    waiting: int
    count: int = 1

    def log_line(self) -> LogLine:
        """Return a WARNING for the first rejection, DEBUG for the others: there may be many."""
        return (
            logging.WARNING if self.count == 1 else logging.DEBUG,
            "lock %s not acquired%s: %s for it in this process already (%s); blocked by: %s",
            self._lock,
            _times(self.count),
            "1 caller waits" if self.waiting == 1 else f"{self.waiting:,} callers wait",
            self.priority,
            self.blocked_by,
        )


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Degraded(Event):
    """The store did not answer; the caller carries on without it.

    Attributes:
        reason: the failure, in words.
        fallback: whether the lock was taken in the fallback store instead. It excludes callers
            that use the fallback as well.
    """

    reason: str
    fallback: bool = False

    def log_line(self) -> LogLine:
        return (
            logging.WARNING,
            "lock %s degraded: %s, the lease store does not answer (%s); "
            "stale writes are still refused at the commit",
            self._lock,
            "taken in the fallback store" if self.fallback else "carrying on without it",
            self.reason,
        )


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Unavailable(_NotAcquired):
    """The store did not answer, and the policy is to fail: the caller got an error.

    Attributes:
        reason: the failure, in words.
    """

    reason: str
    _line = "lock %s not acquired: the lease store does not answer (%s)"
    _logged = logging.WARNING, _line, "reason"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Deadlock(_NotAcquired):
    """The caller would have completed a deadlock cycle, and got `DeadlockDetected`.

    Attributes:
        cycle: each lock of the cycle with its holder, in words.
    """

    cycle: str
    _logged = logging.WARNING, "lock %s not acquired: waiting for it would never end (%s)", "cycle"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Confirmed(Event):
    """The store answers again, and a degraded lock is ours.

    Attributes:
        degraded_seconds: for how long it was held without the store.
    """

    degraded_seconds: float
    _line = "lock %s confirmed: the lease store answers again after %.1f s"
    _logged = logging.INFO, _line, "degraded_seconds"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Conflict(Event):
    """The store answers again, and somebody else holds a degraded lock there.

    Both work under it. Their stale writes are refused at the commit.
    """

    holder: str
    _line = (
        "lock %s is in conflict: taken while the lease store did not answer, and held by %s; "
        "stale writes are refused at the commit"
    )
    _logged = logging.WARNING, _line, "holder"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Extended(Event):
    """A lease was given a new end, by a heartbeat or by hand.

    Attributes:
        seconds: its length from now on.
    """

    seconds: float
    _logged = logging.DEBUG, "lock %s extended by %g s", "seconds"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Broken(Event):
    """An operator ended a lease.

    Attributes:
        holder: the holder, in words.
        by: the operator.
    """

    holder: str
    by: str
    _logged = logging.WARNING, "lock %s broken by %s; it was held by %s", "by", "holder"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
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

    def log_line(self) -> LogLine:
        line = "lock %s %s after %.0f ms"
        return logging.DEBUG, line, self._lock, self.outcome, self.held_seconds * 1000


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class LeaseLost(Event):
    """A lease was found lost: at a heartbeat, an extension or the release.

    Attributes:
        how: the cause, in words: it ran out, was evicted or forgotten, or was taken.
    """

    held_seconds: float
    how: str

    def log_line(self) -> LogLine:
        line = "lock %s was lost while it was held (%.0f ms): %s"
        return logging.WARNING, line, self._lock, self.held_seconds * 1000, self.how


# --- writes ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Violation(Event):
    """A write slipped past its lock. Emitted also when enforcement only logs it.

    Attributes:
        error: the error that is raised, or would be.
        enforced: whether it is raised.
        count: the number of violations of this put site in this process so far.
    """

    error: WriteViolation
    enforced: bool
    count: int = 1

    def log_line(self) -> LogLine:
        """Return a WARNING for each violation that is raised, and for the first of a put site.

        DEBUG for the others.
        """
        name = type(self.error).__name__
        if self.count > 1 and not self.enforced:
            return logging.DEBUG, "%s%s: %s", name, _times(self.count), self.error
        once = "\n  This put site is logged once; userlock.violations() counts the others."
        line = "%s: %s" if self.enforced else f"%s: %s{once}"
        return logging.WARNING, line, name, self.error


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class StaleWrite(Event):
    """A write was refused at the Datastore commit."""

    error: StaleWriteError

    def log_line(self) -> LogLine:
        return logging.WARNING, "stale write refused: %s", self.error


def _times(count: int) -> str:
    return "" if count == 1 else f", {count} times by now"


# --- jobs -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class JobRan(Event):
    """A job of the outbox has run, or was found dead. `lock_id` is its owner.

    Attributes:
        job: its name.
        outcome: `done`; `failed`: it runs again; `dead`: it does not; `lost`: another worker has
            taken it over.
        attempt: from 1 on.
        lag_seconds: from the moment that it was due to its begin.
        seconds: of the run.
        error: of a failure, in one line; empty otherwise.
        namespace: of the job, its tenant; empty for the default one.
    """

    job: str
    outcome: str
    attempt: int
    lag_seconds: float
    seconds: float
    error: str = ""
    namespace: str = ""

    def log_line(self) -> LogLine:
        owner = owner_in(self.namespace, "nobody" if self.lock_id is None else self._lock)
        milliseconds = self.seconds * 1000
        if self.outcome == "done":
            line = "job %s of %s done in %.0f ms (attempt %d)"
            return logging.DEBUG, line, self.job, owner, milliseconds, self.attempt
        level = logging.ERROR if self.outcome == "dead" else logging.WARNING
        error = escaped(f"{self.error}") or "another worker has taken it over"
        facts = self.job, owner, self.outcome, milliseconds, self.attempt, error
        return level, "job %s of %s %s after %.0f ms (attempt %d): %s", *facts


# --- requests -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class RequestServed(Event):
    """A request with an idempotency key was served. `lock_id` is its user.

    Attributes:
        flow: the name of its function.
        outcome: `done`; `resumed`: done by a later attempt; `replayed`: its answer was given again;
            `unfinished`: it has failed and can be sent again; `running`: the same one, or another
            one of the user, was running; `taken over`: another attempt has it; `reused`: its key
            belongs to other parameters; `malformed`: it has no usable key.
        attempt: from 1 on; 0 if none has begun.
        seconds: from the call to the answer.
        error: in one line; empty without one. Of the app's own errors class and place, not the
            text, which may have secrets.
        namespace: of the request, its tenant; empty for the default one.
    """

    flow: str
    outcome: str
    attempt: int
    seconds: float
    error: str = ""
    namespace: str = ""

    #: The outcomes that need attention.
    WARNED = ("unfinished", "taken over")

    def log_line(self) -> LogLine:
        level = logging.WARNING if self.outcome in self.WARNED else logging.DEBUG
        error = f": {escaped(str(self.error))}" if self.error else ""
        owner = owner_in(self.namespace, self._lock)
        facts = self.flow, owner, self.outcome, self.seconds * 1000, self.attempt, error
        return level, "request %s of %s %s after %.0f ms (attempt %d)%s", *facts


# --- listeners ------------------------------------------------------------------------------

Listener = Callable[[Event], None]


def log_event(event: Event) -> None:
    """Log one line for an event: the default listener. `extra["userlock"]` has the event."""
    entry = event.log_line()
    if entry is None or not log.isEnabledFor(entry[0]):
        return
    extra: dict[str, object] = {"userlock": event}
    if isinstance(event, Violation):  # by these `userlock baseline` finds a site in a log
        facts = {FACTS_KEY: facts_of(event.error)}
        # Google's handlers pass on what is in `json_fields`; other JSON formatters every extra.
        extra |= {**facts, "json_fields": facts}
    level, *line = entry
    log.log(level, *line, extra=extra)
    if isinstance(event, Violation):
        event.error.logged = True


class Listeners:
    """A list of listeners, called one after the other."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = tuple(listeners)

    def add(self, listener: Listener) -> None:
        """Call `listener` with every event from now on."""
        if not callable(listener):
            raise TypeError(f"listener must be a function, not {listener!r:.80}")
        self._listeners = (*self._listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Stop calling `listener`. Does nothing if it was never added."""
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def watched(self, level: int = logging.DEBUG) -> bool:
        """Return whether anybody sees events of a level. Those that nobody sees are not made."""
        return self._listeners != (log_event,) or log.isEnabledFor(level)

    def emit(self, event: Event) -> None:
        """Call each listener with the event. Never raises an error of a listener."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a userlock listener failed on %s", type(event).__name__)


#: Called by the model layer as well as by every lock service.
LISTENERS = Listeners([log_event])
