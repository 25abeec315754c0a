"""Operations, carried out against real servers; each write is noted before and after."""

from __future__ import annotations

import contextlib
import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from google.api_core import exceptions as google_errors
from google.cloud import ndb
from pymemcache.client.base import Client as MemcacheClient
from pymemcache.exceptions import MemcacheError

import userlock
from tests.trial.models import Entry, key_of, model_of, user_key
from tests.trial.programs import Accident, Guard, Operation, Read, Way
from tests.trial.record import Outcome, Recorder, Write
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.scope import current_scope

LEASE_SECONDS = 1.0
_PAST_LEASE_SECONDS = 1.2
#: With the time by which memcached may be late.
_PAST_RECORD_SECONDS = LEASE_SECONDS + 5.0
_TRIES = 5
_AFTER_ERROR_SECONDS = 0.05

_LOCKED = (Guard.LOCK, Guard.HEARTBEAT, Guard.EXTENSION, Guard.LOGGED_LOCK)

#: Within that time a server that was stopped goes on, and does what it was asked meanwhile.
_LATE_SECONDS = 6.0
#: What ndb lets through when its global cache does not answer. It asks before it writes, and after.
_CACHE_TROUBLE = (OSError, MemcacheError, ndb.MemcacheCache.KeyNotSet)

Found = tuple[str, Any]


def outcome_of(error: BaseException | None) -> Outcome:
    """What an error of a put, a delete or a transaction says of it.

    Raises:
        BaseException: the error, if it is none that may come.
    """
    if error is None:
        return Outcome.ACCEPTED
    if isinstance(error, userlock.StaleWriteError):
        return Outcome.UNKNOWN if error.may_have_landed else Outcome.REFUSED
    if isinstance(error, userlock.CommitInDoubt):
        return Outcome.UNKNOWN
    if isinstance(error, (userlock.WriteViolation, userlock.LockError, google_errors.Aborted)):
        return Outcome.REFUSED
    if isinstance(error, (google_errors.GoogleAPIError, *_CACHE_TROUBLE)):
        return Outcome.UNKNOWN
    raise error


def _token_for(entity: str) -> str | None:
    """Of the lease under which this thread reads or writes an entity; None: under none."""
    scope = current_scope()
    tenure = None if scope is None else scope.held.get(entity.partition("/")[0])
    return None if tenure is None else tenure.lease.token


def _error_of(action: Callable[[], object]) -> Exception | None:
    try:
        action()
    except Exception as error:
        return error
    return None


class Worker:
    """Carries out operations, one after the other.

    Args:
        client: for Datastore.
        service: for locks.
        memcached: the server of the locks, which is also ndb's global cache.
        recorder: is told of each write, and of what is read under locks.
        fencing: whether writes are fenced.
    """

    def __init__(
        self,
        client: ndb.Client,
        service: userlock.LockService,
        memcached: MemcacheClient,
        recorder: Recorder,
        *,
        fencing: bool,
    ) -> None:
        self._client = client
        self._service = service
        self._memcached = memcached
        self._cache = ndb.MemcacheCache(memcached)
        self._recorder = recorder
        self._fencing = fencing

    def carry_out(self, operation: Operation) -> None:
        """Carry out one operation. Errors that may come are noted; others are raised."""
        logs = operation.guard in (Guard.LOGGED_LOCK, Guard.LOGGED)
        settings = userlock.Settings(
            enforcement=userlock.Enforcement.LOG if logs else userlock.Enforcement.RAISE,
            fencing=self._fencing,
        )
        ended = "done"
        with (
            self._client.context(global_cache=self._cache),
            userlock.scope(
                self._service,
                settings=settings,
                priority="batch" if operation.batch else "interactive",
            ),
        ):
            one = _Request(operation, self._recorder, self._befall)
            try:
                with one.suppressed():
                    one.run()
            except (userlock.LockError, google_errors.GoogleAPIError, *_CACHE_TROUBLE) as error:
                # Before a write: it was not allowed to begin, or could not read.
                ended = type(error).__name__
        if ended != "done":
            time.sleep(_AFTER_ERROR_SECONDS)  # nobody comes back at once
        self._recorder.note("operation", kind=operation.way.name, ended=ended)

    def _befall(self, accident: Accident, user: str) -> None:
        if accident is Accident.PAST_LEASE:
            time.sleep(_PAST_LEASE_SECONDS)
        elif accident is Accident.PAST_RECORD:
            time.sleep(_PAST_RECORD_SECONDS)
        elif accident in (Accident.BROKEN, Accident.EVICTED):
            self._lose(accident, user)

    def _lose(self, accident: Accident, user: str) -> None:
        """A lease is lost; or may be later, where the server has stopped and goes on."""
        kind, lock = ("broken", user) if accident is Accident.BROKEN else ("flushed", None)
        with self._recorder.span(kind, lock=lock):
            try:
                if accident is Accident.BROKEN:
                    self._service.break_lock(user)
                else:
                    self._memcached.flush_all(noreply=False)
            except (userlock.LockError, *_CACHE_TROUBLE):
                self._recorder.note("late", kind=kind, lock=lock, lasts=_LATE_SECONDS)


class _Request:
    """One operation that is under way."""

    def __init__(
        self, operation: Operation, recorder: Recorder, befall: Callable[[Accident, str], None]
    ) -> None:
        self._operation = operation
        self._recorder = recorder
        self._befall = befall
        self._numbers = itertools.count(1)
        #: Of a transaction: which attempt it is, and its writes.
        self._attempt: str | None = None
        self._attempted: list[Write] = []
        self._tenures: Sequence[userlock.Tenure] = ()

    @contextlib.contextmanager
    def suppressed(self) -> Iterator[None]:
        if self._operation.guard is Guard.SUPPRESSED:
            with userlock.suppress("the trial writes without the lock, too"):
                yield
        else:
            yield

    def run(self) -> None:
        way = self._operation.way
        if way is Way.LOCK_INSIDE:
            self._transact(self._change_under_lock)
        else:
            with self._locked():
                _WAYS[way](self)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        guard = self._operation.guard
        if guard not in _LOCKED:
            yield
            return
        if self._operation.read is Read.EARLIER:
            for name in self._operation.entities:
                key_of(name).get()
            time.sleep(self._operation.pause)
        with userlock.global_locks(
            self._operation.users,
            wait_timeout=self._operation.wait,
            lock_timeout=LEASE_SECONDS,
            heartbeat=guard is Guard.HEARTBEAT,
        ) as tenures:
            if guard is Guard.EXTENSION:
                for tenure in tenures:
                    tenure.extend(2 * LEASE_SECONDS)
            self._tenures = tenures
            yield

    # --- reading ----------------------------------------------------------------------------

    def _read(self) -> list[Found]:
        """Each of the operation's entities, None where there is none."""
        found = [(name, self._read_one(name)) for name in self._operation.entities]
        if self._operation.accident is not Accident.NOTHING:
            time.sleep(self._operation.pause)
        self._befall(self._operation.accident, self._operation.users[0])
        if self._operation.read is Read.AGAIN:
            found = [(name, self._read_one(name)) for name, _ in found]
        return found

    def _read_one(self, name: str) -> Any:
        began, token = SYSTEM_CLOCK.now(), _token_for(name)
        entity = self._fetched(name)
        # A transaction may show what there was when it began, which is before a lock inside it.
        if token is not None and self._operation.way is not Way.LOCK_INSIDE:
            found = None if entity is None else entity.last
            self._recorder.note("read", entity=name, found=found, token=token, began=began)
        return entity

    def _fetched(self, name: str) -> Any:
        key = key_of(name)
        if self._operation.read is Read.QUERY:
            user = user_key(name.partition("/")[0])
            entities = model_of(name).query(ancestor=user).fetch()
            return next((each for each in entities if each.key == key), None)
        return key.get(use_cache=self._operation.read is not Read.UNCACHED)

    # --- writing ----------------------------------------------------------------------------

    def _write(self, name: str | None, entity: Any, *, deletes: bool = False) -> Write:
        """Note a write that is about to be sent."""
        write = Write(
            f"{self._operation.name}.{next(self._numbers)}",
            self._operation.name,
            name,
            before=None if entity is None else entity.last,
            deletes=deletes,
            together=self._attempt,
            token=None if name is None else _token_for(name),
        )
        self._recorder.about_to(write)
        if self._attempt is not None:
            self._attempted.append(write)
        return write

    def _changed(self, name: str, entity: Any) -> tuple[Any, Write]:
        """An entity that counts one more, made if there is none; and its write."""
        write = self._write(name, entity)
        if entity is None:
            entity = model_of(name)(key=key_of(name))
        entity.count += 1
        entity.last = write.id
        return entity, write

    def _entry(self) -> tuple[Any, Write]:
        write = self._write(None, None)
        return Entry(parent=user_key(self._operation.users[0]), write=write.id), write

    def _told(self, write: Write, action: Callable[[], object]) -> None:
        """Do it, and note what was told."""
        error = _error_of(action)
        self._recorder.ended(write, outcome_of(error), error)

    def _put(self) -> None:
        for name, entity in self._read():
            changed, write = self._changed(name, entity)
            self._told(write, changed.put)

    def _put_twice(self) -> None:
        for name, entity in self._read():
            changed, write = self._changed(name, entity)
            self._told(write, changed.put)
            if write.outcome is Outcome.ACCEPTED:
                _, again = self._changed(name, changed)
                self._told(again, changed.put)

    def _put_together(self) -> None:
        """Each of the batch is told of its own."""
        puts: list[tuple[Write, Any]] = []
        for name, entity in self._read():
            changed, write = self._changed(name, entity)
            try:
                puts.append((write, changed.put_async()))
            except userlock.WriteViolation as violation:
                self._recorder.ended(write, outcome_of(violation), violation)
        for write, future in puts:
            self._told(write, future.get_result)

    def _delete(self) -> None:
        for name, entity in self._read():
            if entity is not None:
                self._told(self._write(name, entity, deletes=True), entity.key.delete)

    def _put_and_yield(self) -> None:
        """A long job: each step reads anew, and people may pass in between."""
        for name in self._operation.entities:
            for tenure in self._tenures:
                tenure.yield_to_waiters(wait_timeout=self._operation.wait)
            entity = self._read_one(name)
            time.sleep(self._operation.pause)
            changed, write = self._changed(name, entity)
            self._told(write, changed.put)

    def _put_entry(self) -> None:
        entry, write = self._entry()
        self._told(write, entry.put)

    # --- in transactions --------------------------------------------------------------------

    def _transact(self, step: Callable[[], None]) -> None:
        """Run it in a transaction, and note what was told of its last attempt.

        Those before it were not applied, or it would not have been run again.
        """
        numbers = itertools.count(1)

        def attempt() -> None:
            for write in self._attempted:
                self._recorder.ended(write, Outcome.REFUSED)
            self._attempted.clear()
            self._attempt = f"{self._operation.name}/{next(numbers)}"
            step()

        error = _error_of(lambda: ndb.transaction(attempt, retries=_TRIES))
        outcome = outcome_of(error)
        for write in self._attempted:
            self._recorder.ended(write, outcome, error)
        self._attempt = None

    def _put_all(self, found: Iterable[Found]) -> None:
        for name, entity in found:
            self._changed(name, entity)[0].put()

    def _change(self) -> None:
        self._put_all(self._read())

    def _change_under_lock(self) -> None:
        with self._locked():
            self._change()

    def _change_what_was_read_before(self) -> None:
        found = self._read()
        # Another attempt begins with what was read, not with what the first has made of it.
        self._transact(lambda: self._put_all((name, copy.deepcopy(each)) for name, each in found))

    def _change_and_enter(self) -> None:
        self._change()
        self._entry()[0].put()

    def _delete_all(self) -> None:
        for name, entity in self._read():
            if entity is not None:
                self._write(name, entity, deletes=True)
                entity.key.delete()


_WAYS: dict[Way, Callable[[_Request], None]] = {
    Way.PUT: _Request._put,
    Way.BATCH: _Request._put_together,
    Way.TWICE: _Request._put_twice,
    Way.DELETE: _Request._delete,
    Way.ENTRY: _Request._put_entry,
    Way.JOB: _Request._put_and_yield,
    Way.TRANSACTION: lambda one: one._transact(one._change),
    Way.READ_BEFORE: _Request._change_what_was_read_before,
    Way.DELETE_IN_TRANSACTION: lambda one: one._transact(one._delete_all),
    Way.ENTRY_IN_TRANSACTION: lambda one: one._transact(one._change_and_enter),
}
