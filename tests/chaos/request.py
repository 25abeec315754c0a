"""One operation in progress: its reads and writes, each recorded before and after."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from google.api_core import exceptions as google_errors
from google.cloud import ndb
from pymemcache.exceptions import MemcacheError

import userlock
from tests.chaos.garden import Garden
from tests.chaos.jobs import Jobs
from tests.chaos.models import Entry, key_of, model_of, user_key
from tests.chaos.programs import Accident, Guard, Operation, Read, Way
from tests.chaos.record import Outcome, Recorder, Write
from userlock.clock import SYSTEM_CLOCK
from userlock.errors import FlowTakenOver
from userlock.lock.scope import current_scope
from userlock.ndb.owners import current_namespace

if TYPE_CHECKING:
    from tests.chaos.desk import Desk

LEASE_SECONDS = 1.0
_TRIES = 5

_LOCKED = (Guard.LOCK, Guard.HEARTBEAT, Guard.EXTENSION, Guard.LOGGED_LOCK, Guard.PARTLY)
#: Without the lock, these are only logged, or not even checked.
_UNCHECKED = (Guard.LOGGED_LOCK, Guard.LOGGED, Guard.SUPPRESSED)
#: Of several puts of one change, the best outcome counts.
_BEST_FIRST = (Outcome.ACCEPTED, Outcome.UNKNOWN, Outcome.REFUSED)

#: The errors that ndb passes on when its global cache does not answer. It uses the cache before and
#: after a write.
CACHE_TROUBLE = (OSError, MemcacheError, ndb.MemcacheCache.KeyNotSet)

_ROLLED_BACK = (
    userlock.WriteViolation,
    userlock.LockError,
    userlock.NotUnique,
    FlowTakenOver,
    google_errors.Aborted,
    ndb.exceptions.Rollback,
)

Found = tuple[str, Any]


def outcome_of(error: BaseException | None) -> Outcome:
    """Return the outcome that an error of a put, a delete or a transaction stands for.

    Raises:
        BaseException: the error, if it is none that may come.
    """
    if error is None:
        return Outcome.ACCEPTED
    if isinstance(error, userlock.StaleWriteError):
        return Outcome.UNKNOWN if error.may_have_landed else Outcome.REFUSED
    if isinstance(error, userlock.CommitInDoubt):
        return Outcome.UNKNOWN
    if isinstance(error, _ROLLED_BACK):
        return Outcome.REFUSED
    if isinstance(error, (google_errors.GoogleAPIError, *CACHE_TROUBLE)):
        return Outcome.UNKNOWN
    raise error


def error_of(action: Callable[[], object]) -> Exception | None:
    """Return the error that the action raises, if any."""
    try:
        action()
    except Exception as error:
        return error
    return None


def _user_of(name: str) -> str:
    return name.partition("/")[0]


def _tenure_of(user: str) -> userlock.HeldLock | None:
    """Return the tenure of the running code for a user, if any."""
    scope = current_scope()
    return None if scope is None else scope.held.get(user)


class RequestScope(Protocol):
    """The parts of its worker that a request needs."""

    jobs: Jobs
    garden: Garden
    desk: Desk

    def befall(self, accident: Accident, user: str) -> None:
        """Cause an accident to the locks, to a user's lock, or in time."""

    def beside(self, action: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Run the action in another thread with the same locks, until the end of the block."""


class Request:
    """One operation in progress: see the module."""

    def __init__(
        self, operation: Operation, recorder: Recorder, surroundings: RequestScope
    ) -> None:
        self.operation = operation
        self.surroundings = surroundings
        self.tenures: Sequence[userlock.HeldLock] = ()
        self.recorder = recorder
        self._numbers = itertools.count(1)
        #: Of a transaction: the attempt, and its writes.
        self._attempt: str | None = None
        self._attempted: list[Write] = []
        self._stages = False
        self._since = 0.0

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Take the locks of the program's guard."""
        operation = self.operation
        if operation.guard not in _LOCKED:
            yield
            return
        if operation.read is Read.EARLIER:
            for name in operation.entities:
                key_of(name).get()
            time.sleep(operation.pause)
        partly = operation.guard is Guard.PARTLY
        with userlock.global_locks(
            operation.users[:1] if partly else operation.users,
            wait_timeout=operation.wait,
            lock_timeout=LEASE_SECONDS,
            heartbeat=operation.guard is Guard.HEARTBEAT,
        ) as tenures:
            if operation.guard is Guard.EXTENSION:
                for tenure in tenures:
                    tenure.extend(2 * LEASE_SECONDS)
            self.tenures = tenures
            yield

    # --- reading ----------------------------------------------------------------------------

    def read(self) -> list[Found]:
        """Return each of the operation's entities, or None if it is missing."""
        found = [(name, self.read_one(name)) for name in self.operation.entities]
        self.pause()
        if self.operation.read is Read.AGAIN:
            found = [(name, self.read_one(name)) for name, _ in found]
        return found

    def pause(self) -> None:
        """Cause the program's accident between the read and the write."""
        if self.operation.accident is not Accident.NOTHING:
            time.sleep(self.operation.pause)
        self.surroundings.befall(self.operation.accident, self.operation.users[0])

    def read_one(self, name: str) -> Any:
        """Return an entity, or None."""
        note = self._sight(name)
        return note(self._fetched(name))

    @ndb.tasklet
    def read_one_async(self, name: str) -> Any:
        """Return an entity in a tasklet, by a look-up."""
        note = self._sight(name)
        entity = yield key_of(name).get_async()
        return note(entity)

    def _sight(self, name: str) -> Callable[[Any], Any]:
        """Record the start of a read. Return a function that records its end and returns the
        entity.
        """
        tenure = _tenure_of(_user_of(name))
        began = SYSTEM_CLOCK.now()

        def note(entity: Any) -> Any:
            # A transaction may show the state of its beginning, before a lock inside it.
            if tenure is not None and self.operation.way is not Way.LOCK_INSIDE:
                found = None if entity is None else entity.last
                token = tenure._lease.token
                self.recorder.note("read", entity=name, found=found, token=token, began=began)
            return entity

        return note

    def _fetched(self, name: str) -> Any:
        key = key_of(name)
        if self.operation.read is Read.QUERY:
            user = user_key(_user_of(name))
            entities = model_of(name).query(ancestor=user).fetch()
            return next((each for each in entities if each.key == key), None)
        return key.get(use_cache=self.operation.read is not Read.UNCACHED)

    # --- writing ----------------------------------------------------------------------------

    def write(
        self,
        name: str | None,
        before: str | None,
        *,
        deletes: bool = False,
        unguarded: bool = False,
        past: bool = False,
    ) -> Write:
        """Record a write that is about to be sent.

        Args:
            name: the entity; None for a new one.
            unguarded: whether it is not checked.
            past: whether it bypasses the library.
        """
        tenure = None if name is None else _tenure_of(_user_of(name))
        write = Write(
            f"{self.operation.name}.{next(self._numbers)}",
            self.operation.name,
            name,
            before=before,
            deletes=deletes,
            together=self._attempt,
            token=None if tenure is None else tenure._lease.token,
            forbidden=past or (not unguarded and self.forbids(name)),
        )
        self.recorder.about_to(write)
        if self._attempt is not None:
            self._attempted.append(write)
        return write

    def forbids(self, name: str | None) -> bool:
        """Return whether a write of this entity must be refused now, for its lock is not held."""
        user = self.operation.users[0] if name is None else _user_of(name)
        return self.operation.guard not in _UNCHECKED and _tenure_of(user) is None

    def changed(self, name: str, entity: Any, **facts: bool) -> tuple[Any, Write]:
        """Return an entity with a count higher by one, created if missing, and its write (see
        `write`)."""
        write = self.write(name, None if entity is None else entity.last, **facts)
        if entity is None:
            entity = model_of(name)(key=key_of(name))
        entity.mark(write.id)
        return entity, write

    def entry(self) -> tuple[Any, Write]:
        """Return a new entity of its own, and its write."""
        write = self.write(None, None)
        return Entry(parent=user_key(self.operation.users[0]), write=write.id), write

    def stage(
        self,
        kind: str,
        user: str,
        *,
        lasts: float,
        failures: int,
        dedupe: str | None,
        delay: float | None,
    ) -> None:
        """Stage a job in the transaction: a write that lands as an effect, or as a dead letter.

        Args:
            kind: one of `jobs.KINDS`.
            failures: the number of its first runs that fail.
            dedupe, delay: as in `Job.stage`.
        """
        write = self.write(None, None, unguarded=True)  # a job needs no lock
        jobs = self.surroundings.jobs
        staged = jobs.of_kind[kind].stage(
            user, write.id, pause=lasts, failures=failures, dedupe=dedupe, delay=delay
        )
        self.recorder.note(
            "staged",
            id=write.id,
            user=user,
            kind=kind,
            key=staged.key,
            duplicate=staged.duplicate,
            failures=failures,
            ready=0.0 if delay is None else jobs.clock.wall() + delay,
            since=self._since,
        )
        self._stages = True

    def report(self, write: Write, action: Callable[[], object]) -> bool:
        """Write, and record the outcome. In a transaction, which has one outcome, only write.

        Returns:
            Whether the operation may continue.
        """
        if self._attempt is not None:
            action()
            return True
        return self.ended(write, error_of(action))

    def ended(self, write: Write, error: Exception | None) -> bool:
        """Record an outcome. Return whether the write was accepted."""
        if isinstance(error, userlock.NotUnique):
            holder = error.holder.namespace() or ""
            if holder != current_namespace():
                self.recorder.note("stray", id=write.id, where=f"refused for one of {holder!r}")
        past = self.operation.way is Way.PAST and isinstance(error, userlock.WriteNotFenced)
        self.recorder.ended(write, Outcome.REFUSED if past else outcome_of(error), error)
        return write.outcome is Outcome.ACCEPTED

    def begun(self, write: Write, begin: Callable[[], Any]) -> Callable[[], bool]:
        """Begin a write. Return a function that waits for it, then does the same as `report`."""
        if self._attempt is not None:
            future = begin()
            return lambda: self.report(write, future.get_result)
        try:
            future = begin()
        except userlock.WriteViolation as violation:
            self.ended(write, violation)
            return lambda: False
        return lambda: self.report(write, future.get_result)

    def changes(self, name: str, entity: Any) -> Changes:
        """Return the changes of an entity, which may be None."""
        return Changes(self, name, entity)

    # --- in transactions --------------------------------------------------------------------

    @property
    def transacting(self) -> bool:
        """Return whether it is in a transaction now."""
        return self._attempt is not None

    def transact(self, step: Callable[[], None]) -> None:
        """Run the step in a transaction, and record the outcome of its last attempt.

        Earlier attempts were not applied, because the transaction was retried.
        """
        numbers = itertools.count(1)
        self._since = SYSTEM_CLOCK.now()

        def attempt() -> None:
            for write in self._attempted:
                self.recorder.ended(write, Outcome.REFUSED)
            self._attempted.clear()
            self._attempt = f"{self.operation.name}/{next(numbers)}"
            step()
            if self._stages:
                self.recorder.note("sent", together=self._attempt)

        error = error_of(lambda: in_transaction(attempt))
        self._attempt = None
        for write in self._attempted:
            self.ended(write, error)


def in_transaction(action: Callable[[], object]) -> None:
    """Run the action in a transaction, several times if necessary."""
    ndb.transaction(action, retries=_TRIES)


class Changes:
    """Successive changes of one object, and puts of the object.

    A put sends all changes that were made before its message was created. So a change is accepted
    if any put that carried it is accepted, whatever the other outcomes.

    Args:
        entity: the entity as read; None if it is missing.

    Attributes:
        entity: the object; None before the first change of a missing entity.
    """

    def __init__(self, request: Request, name: str, entity: Any) -> None:
        self.name = name
        self.entity = entity
        self._request = request
        self._changes: list[Write] = []
        #: Of each put, the number of changes that it carried, and its error.
        self._puts: list[tuple[int, Exception | None]] = []

    def change(self) -> None:
        """Make one more change."""
        self.entity, write = self._request.changed(self.name, self.entity)
        self._changes.append(write)

    def begin(self) -> Callable[[], None]:
        """Begin a put. Return a function that waits for it and counts its outcome.

        In a transaction it is awaited at once: ndb's global cache refuses a second put of an entity
        in the same turn.
        """
        if self._request.transacting:
            self.entity.put()
            return lambda: None
        try:
            future = self.entity.put_async()
        except userlock.WriteViolation as violation:
            self._refused(violation)
            return lambda: None
        return self._waits_for(future)

    def _refused(self, violation: userlock.WriteViolation) -> None:
        self._puts.append((len(self._changes), violation))

    def _waits_for(self, future: Any) -> Callable[[], None]:
        carried = len(self._changes)

        def wait() -> None:
            self._put(carried, future.get_result)

        return wait

    def put(self, put: Callable[[], object] | None = None) -> None:
        """Put the object with all changes so far, by default as ndb does, and wait."""
        self._put(None, put or self.entity.put)

    def _put(self, carried: int | None, action: Callable[[], object]) -> None:
        if self._request.transacting:
            action()
            return
        error = error_of(action)
        # Its hook may have made more changes.
        self._puts.append((len(self._changes) if carried is None else carried, error))

    def settle(self) -> None:
        """Record the outcome of each change. A transaction has one outcome for all."""
        if self._request.transacting:
            return
        for number, write in enumerate(self._changes):
            reported = [
                (outcome_of(error), error) for carried, error in self._puts if carried > number
            ]
            best = min(reported, key=lambda each: _BEST_FIRST.index(each[0]), default=None)
            self._request.recorder.ended(write, *(best or (Outcome.REFUSED, None)))

    @property
    def landed(self) -> bool:
        """Return whether the last change was accepted, or will be with its transaction."""
        last = [error for carried, error in self._puts if carried == len(self._changes)]
        return self._request.transacting or None in last


def begin_all(every: Sequence[Changes]) -> list[Callable[[], None]]:
    """Begin puts of several objects in one call. See `Changes.begin`."""
    try:
        futures = ndb.put_multi_async([changes.entity for changes in every])
    except userlock.WriteViolation as violation:
        if every[0]._request.transacting:
            raise
        for changes in every:
            changes._refused(violation)
        return []
    return [changes._waits_for(each) for changes, each in zip(every, futures, strict=True)]
