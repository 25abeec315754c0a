"""Fenced writes: one `Write` for each put and delete, from the call to its outcome.

Datastore reports the version of each entity that it returns, and skips a
mutation whose `base_version` differs from the stored version. So it refuses a
write that its lock failed to protect:

    A                         Datastore (version 7)      B
    get ────────────────────▶ v7 ◀────────────────────── get
    (its lease runs out)                                 (takes the lock)
                              v8 ◀────────────────────── put, base_version 7
    put, base_version 7 ────▶ conflict: v8 stays
    StaleWriteError

A new object with a key of its own is sent as an insert. The number of the write travels
with the key to the Commit request (`wire`). There the gate (`stub`) exchanges it for the
version that the write builds on. All that belongs to a write is in its `Write`, so puts of
one object within each other, at once, or from two threads do not meet.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from google.cloud import ndb
from google.cloud.ndb import tasklets

from userlock import errors
from userlock.callsite import CallSite
from userlock.errors import LockIdError, WriteViolation
from userlock.events import LISTENERS, StaleWrite
from userlock.lock.configuration import defaults
from userlock.lock.held_lock import HeldLock, held_seconds_of
from userlock.lock.scope import current_scope
from userlock.ndb import provenance
from userlock.ndb.capabilities import honours_base_version, why_not_fenced
from userlock.ndb.checks import check_delete, check_put
from userlock.ndb.commits import InDoubt, Landed, Outcome, Refused, Unguarded
from userlock.ndb.commits import path_of as path_in
from userlock.ndb.context import (
    Attempt,
    current_attempt,
    current_context,
    request_notes,
    uses_datastore,
)
from userlock.ndb.lock_ids import lock_id_for_put
from userlock.ndb.patches import is_complete, path_of
from userlock.ndb.pending import PendingWrite, books_of, note_failure, wait_for, wait_for_key
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import NO_LOCKS, Stamp, stamp_of, version_of
from userlock.ndb.wire import TicketedKey, number_in
from userlock.reports import REPORTS, unlocked_blocks
from userlock.settings import Enforcement, Reaction, Settings

#: The writes that have not passed the gate yet, by number. Their futures and transactions keep
#: them.
_open: weakref.WeakValueDictionary[int, Write] = weakref.WeakValueDictionary()

_ABOUT_TO_BE_SENT = "it was about to be sent"


def redeem(key: Any) -> Write | None:
    """Return the write whose number is in a (raw) key, once, if it is for the entity of that."""
    write = _open.pop(number_in(key), None)
    if write is not None and write.is_for(path_in(key), key.partition_id.namespace_id):
        return write
    return None


class Write(PendingWrite):
    """One put or delete. Implements `commits.Write`.

    It is in a context variable during the call of ndb that begins it. That call may begin other
    writes, even of the same object, each with a `Write` of its own.
    """

    deleting = must_be_new = False
    base_version = read_version = order = 0
    write_id: tuple[str, int] | None = None
    rows: Any = None  # those that change in its commit
    further: Any = None  # looks after them
    claimed: tuple[Any, ...] = ()  # the keys of all rows that its entity will have
    withdrawn = doubtful = checked = new_id = False
    relies_on_its_locks = False  # nothing else protects it: Datastore would not refuse it
    _read_here = False  # its entity was read in its transaction, which protects it
    _lock_id: str | None = None
    stamp: Stamp | None = None
    #: The locks, transaction and settings when it was checked.
    held: Mapping[str, HeldLock] = NO_LOCKS
    _settings: Settings
    fenced = enforced = True
    _path: tuple[Any, ...]
    tenures: tuple[HeldLock, ...] = ()
    _error: Exception | None = None
    _options: dict[str, Any]
    _key_sent = False
    _before: Any = None  # the latest write of its entity before it, in their transaction
    attempt: Attempt | None = None
    #: Takes what ndb has made of the entity, and is about to send in a transaction.
    sends: Callable[[Any], None]
    #: Notes that it is in Datastore.
    landed: Callable[[Landed], None]

    def __init__(
        self,
        model: Any,
        key: Any,
        place: CallSite | None,
        context: Any,
        unguarded: str | None = None,
        *,
        entity: Any = None,
        inserts: bool = False,
    ) -> None:
        if unguarded is not None and (not isinstance(unguarded, str) or not unguarded.strip()):
            raise ValueError("unguarded= needs a reason: say why writing without the lock is right")
        super().__init__(context)
        self.entity, self.key, self.place = entity, key, place
        self._model, self._unguarded, self._inserts = model, unguarded, inserts
        self.stays: bool = model._userlock_stays
        self._notes = notes = request_notes()
        self._ledger, self._flying = notes.ledger, notes.flying

    def begin(self, begin: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Begin the write by this call of ndb. Returns its future."""
        self._options = options
        if self.begun_in.transaction is not None:
            self.attempt = attempt = current_attempt()
            before = attempt.latest.get(self.key)
            if before is not None:  # ndb fails to lock an entity in its cache twice in one turn
                wait_for(before)
        around, group = _writing.get(), _group.get()
        token = _writing.set(self)
        try:
            future = begin(*args, **options)
            if self._error is not None or (not self.checked and future.done()):
                future.check_success()  # in the future alone, nobody might see its error
            if self.checked:
                if self.attempt is not None:
                    self._begun(self.attempt, future)
                elif not self.new_id:
                    self._flying[self.key] = self
                self.enter(future)
                if group is not None and group.around is around:  # not a write within one of them
                    group.writes.append(self)
        except BaseException as error:
            self.withdraw()
            rolled_back = self.begun_in.transaction is not None and current_attempt().rolled_back
            if isinstance(error, errors.UserLockError) and not rolled_back:
                scope = current_scope()
                tenures = () if scope is None else scope.held.values()
                note_failure(error, self._subject, tenures, self._notes)
            raise
        finally:
            _writing.reset(token)
        return future

    def _look_around(self) -> None:
        scope = current_scope()
        self.held = NO_LOCKS if scope is None else scope.held
        self._settings = settings = defaults.settings if scope is None else scope.settings
        arranges = REPORTS.is_test_code is not None and REPORTS.arranges(self.place)
        self.fenced = self._model._userlock_always_fenced or (settings.fencing and not arranges)
        self.enforced = (
            settings.enforcement is not Enforcement.OFF
            and REPORTS.checks
            and unlocked_blocks.get() < 1
            and not arranges
            and not self._unguarded
        )

    def _check_in(self) -> None:
        """Let the gate pass it from here on, if it can be fenced: it is checked."""
        stamp, context = self.stamp, self.begun_in
        transaction: bytes | None = context.transaction
        #: As the key was before Datastore allocates an id.
        self._path = (self._model._get_kind(),) if self.key is None else path_of(self.key)
        self.new_id = len(self._path) % 2 == 1
        self.books = books = list(map(books_of, self.tenures))
        if self.attempt is not None:
            if self.attempt.over:
                raise self._violation(errors.WriteAfterCommit)
            books.append(self.attempt.books)
        elif not books:  # a write that needs no lock
            books.extend(map(books_of, self.held.values()) if self.held else [self._notes.books])
        if stamp is not None:
            self.read_version = max(stamp.version, 0)
            self._read_here = transaction is not None and stamp.transaction == transaction
            if self.fenced and not self._read_here:
                self.base_version = self.read_version
                if not self.read_version:
                    self._check_without_version(stamp)
        if self.attempt is None and self.base_version and not honours_base_version(context.client):
            raise self.not_fenced(**why_not_fenced(context.client))
        if not self.base_version and not self._read_here:
            self.must_be_new = self._creates()
            if self.tenures and not (self.must_be_new or self.new_id):
                self.relies_on_its_locks = True
        _open[self.number] = self
        self.checked, self.order = True, next(provenance.orders)

    def _creates(self) -> bool:
        return False

    def _check_without_version(self, stamp: Stamp) -> None:
        if stamp.version == provenance.DELETED or not uses_datastore(
            self.begun_in, self.key, self._options
        ):
            return  # it is created again, or lives in the global cache only
        if stamp.version == provenance.OVERTAKEN:
            raise self.refused(0)
        raise self.not_fenced(
            "it was read without its version, so nobody could tell whether it has changed since",
            "read it again, from Datastore itself (not from a message or a cache, and not from a "
            "server that reports no versions)",
        )

    def ticketed(self, ds_key: Any, content: Any = None) -> Any:
        """Return the key for its message, with its number once; unchanged if it is another's.
        `content` is what ndb has made of the entity; None for a delete."""
        is_mine = self.checked and not self._key_sent
        if not is_mine or not self.is_for(ds_key.flat_path, ds_key.namespace):
            return ds_key
        self._key_sent = True
        if self.attempt is not None:
            self.attempt.tickets.append(self)
            if content is not None:
                self.sends(content)
        return TicketedKey.of(ds_key, self.number)

    def _begun(self, attempt: Attempt, future: Any) -> None:
        self._before = attempt.latest.get(self.key)
        attempt.latest[self.key] = self

    def _over(self, future: Any) -> None:
        """Note that it has landed or failed, or waits for the commit of its transaction."""
        sent_by = self.sent_by
        if sent_by is not None and self.attempt is None and not sent_by.done():
            return  # it has another error than the write's own, and `wait_for` goes on
        self.forget()
        error: BaseException | None = tasklets.Future.exception(future)  # without asking it
        if error is not None:
            self._undo_note()
            if not self.withdrawn:
                self.outdate_objects()
        elif self.new_id:
            # An id has been allocated, and the application has not changed the key again yet.
            self.key = self.entity._userlock_key
            stamp = stamp_of(self.entity)  # which learns the key as well
            if stamp is not None:
                self._ledger.saw(stamp, put=True)
            if self.attempt is not None:
                self.attempt.latest[self.key] = self
                self._ledger.allocated(self.key)
        if error is None or self.withdrawn:
            return
        if self.attempt is not None and self.attempt.over:
            return  # the transaction has the error
        if not self.fenced and self._settings.enforcement is not Enforcement.RAISE:
            return  # it fails as in ndb: whoever dropped its future does not learn of it
        failure = note_failure(error, self._subject, self.tenures, self._notes, *self.books)
        failure.lies_in(future, error)

    @property
    def _subject(self) -> Any:
        """Return its entity: by the key, or the object while that has no id."""
        return self.key if is_complete(self.key) else self.entity

    def withdraw(self) -> None:
        """Do not send the write, unless it was sent. Its caller gets another error."""
        self.outdate_objects()
        if self.number in _open:
            self.withdrawn = True
            self._undo_note()

    def _undo_note(self) -> None:
        latest = {} if self.attempt is None else self.attempt.latest
        if latest.get(self.key) is self:
            if self._before is None:
                del latest[self.key]
            else:
                latest[self.key] = self._before

    def is_for(self, path: tuple[Any, ...], namespace: str | None) -> bool:
        """Return whether it is for the entity with that key, whose id may have been allocated."""
        if self.new_id:
            return path[: len(self._path)] == self._path and len(path) - len(self._path) < 2
        return path == self._path and (namespace or None) == (self.key.namespace() or None)

    def check_commit(self) -> None:
        """Check that its locks have been held until the commit. ndb rolls back if not, and does not
        run the transaction again: the `WriteViolation` is not transient."""
        to_commit = "its transaction was about to commit"
        for lapse in self._lapses(_ABOUT_TO_BE_SENT if self.attempt is None else to_commit):
            report(self._violation(*lapse))

    def trying_again(self) -> None:
        """Check the leases of the locks around its transaction, before another attempt of it. Locks
        that were taken inside are taken again."""
        for kind, detail in self._lapses("its transaction was about to be run again"):
            if kind is not errors.PutAfterRelease:
                report(self._violation(kind, detail))

    @property
    def guarded(self) -> bool:
        """Return whether Datastore, or a lock that is still held, protects it. For any thread."""
        if not self.relies_on_its_locks or self._settings.enforcement is not Enforcement.RAISE:
            return True
        return next(self._lapses(""), None) is None

    def _lapses(self, when: str) -> Iterator[tuple[type[WriteViolation], str]]:
        """Yield the violation and the details of each lock that is not held any more."""
        for tenure in self.tenures if self.enforced else ():
            if not tenure.held:
                yield errors.PutAfterRelease, when
            elif tenure.lost:
                yield errors.LeaseWasLost, tenure.lost
            elif not tenure.expires_in:
                held = f"{held_seconds_of(tenure):.3g} s after the lock was taken"
                yield errors.LeaseRanOut, f"{when} {held}"

    def settle(self, outcome: Outcome, others_landed: int) -> Exception | None:
        """Take the outcome. Returns the error for the caller of the write, if there is one."""
        if isinstance(outcome, Landed):
            for failure in tuple(self._notes.books.failures.values()):
                failure.forget(self.key, self.entity)
            self.landed(outcome)
            return None
        if isinstance(outcome, Refused):
            found, maybe = outcome
            return self.refused(found, others_landed=others_landed, may_have_landed=maybe)
        self.outdate_objects()
        kind = self._model._get_kind()
        cause: Exception
        if isinstance(outcome, InDoubt):
            cause = outcome.cause
        elif isinstance(outcome, Unguarded):
            unknown = errors.LeaseRanOut, _ABOUT_TO_BE_SENT
            cause = self._violation(*next(self._lapses(_ABOUT_TO_BE_SENT), unknown))
            if not outcome.may_have_landed:
                return cause
        else:
            return outcome.error(key=self.key, kind=kind, put_at=self.place)
        error = errors.CommitInDoubt(**self._facts, kind=kind)
        error.__cause__ = cause
        return error

    def refused(self, version: int, **facts: Any) -> errors.StaleWriteError:
        """Take a conflict: the objects of the entity are outdated, and listeners hear of it."""
        kind = errors.EntityExistsError if self.must_be_new else errors.StaleWriteError
        error = kind(
            **self._facts,
            **facts,
            read_version=self.base_version,
            found_version=version,
            read_at=None if self.stamp is None else self.stamp.place,
            locked=self._model._write_policy is WritePolicy.USER_LOCK,
        )
        seen = self._ledger.last(self.key) if version else None
        if seen is not None and seen.version == version:
            place = seen.place or "a place that is not known"
            error.add_note(
                f"This request itself has seen that version, at {place}. To fix it: put that "
                f"object."
            )
        self.outdate_objects()
        if not self._model._userlock_always_fenced:
            LISTENERS.emit(StaleWrite(self._lock_id, error))
        return error

    def outdate_objects(self) -> None:
        if is_complete(self.key):  # the next read asks Datastore, and not a context cache
            self._ledger.failed(self.key)

    @property
    def _facts(self) -> dict[str, Any]:
        place, deleting = self.place, self.deleting
        return {"key": self.key, "lock_id": self._lock_id, "put_at": place, "deleting": deleting}

    def not_fenced(self, reason: str, remedy: str) -> errors.WriteNotFenced:
        kind = self._model._get_kind()
        return errors.WriteNotFenced(**self._facts, kind=kind, reason=reason, remedy=remedy)

    def _violation(self, kind: type[WriteViolation], detail: str = "") -> errors.WriteViolation:
        policy = self._model._write_policy
        return kind(
            **self._facts,
            kind=self._model._get_kind(),
            policy="" if policy is WritePolicy.USER_LOCK else str(policy),
            read_at=None if self.stamp is None else self.stamp.place,
            detail=detail,
        )

    def report(
        self,
        kind: type[WriteViolation],
        detail: str,
        *,
        lock_id: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        """Raise a violation that its check has found, or log it, as the settings say."""
        self._lock_id = lock_id
        violation = self._violation(kind, detail)
        violation.__cause__ = cause
        report(violation)


def report(violation: WriteViolation) -> None:
    enforced = provenance.current_settings().enforcement is Enforcement.RAISE
    if REPORTS.report(violation, enforced=enforced):
        raise violation


class Put(Write):
    """One put. `inserts`: the entity must be new, whatever its class says."""

    content: Any = None  # what ndb has made of the entity

    def check(self, prepare: Callable[[], None]) -> None:
        """Check it, as the last step before ndb reads the properties, after the hooks. `prepare` is
        ndb's function that computes properties."""
        entity, group = self.entity, _group.get()
        self.key = entity._userlock_key
        self.stamp = stamp = entity._userlock_stamp
        if stamp is not None and stamp.version == provenance.PARTIAL:
            with contextlib.suppress(Exception):  # it may lack its lock id, and its class a rule
                self._lock_id = lock_id_for_put(entity)
            detail = f"it has only {', '.join(entity.to_dict())}"
            violation = self._violation(errors.PartialEntityPut, detail)
            REPORTS.report(violation, enforced=True)
            raise violation
        if isinstance(entity, ndb.Expando):
            _write_through(entity)
        # The wait lets other code change the entity. What is stored is computed after it.
        if self._flying and self.begun_in.transaction is None:
            if group is not None and self._flying.get(self.key) in group.writes:
                self._check()  # waiting for that would send it: refuse this before
            wait_for_key(self.key, self._flying)
        prepare()
        rows = self._model._userlock_rows
        try:
            wanted = () if rows is None else rows.claims_of(entity)
        except LockIdError:
            self._check()  # raises `LockIdMissing` with the call site, if writes are checked
            raise
        # From here on, no code of the application runs until the write is checked in.
        stamp = self._check()
        if stamp is not None and self._ledger.deletions and self._ledger.has_deleted(stamp):
            stamp = self.stamp = stamp._replace(version=provenance.DELETED)
        self._check_in()
        if self.attempt is not None:
            self._check_other_object(self.attempt.latest.get(self.key))
        if rows is not None:
            self.further = rows
            self.rows, self.claimed = rows.change(entity, wanted, self._known_rows())
        if entity._userlock_new_write_id is not None:
            self.write_id = entity._userlock_new_write_id(entity)

    def _check(self) -> Stamp | None:
        self._look_around()
        self.key = self.entity._userlock_key
        self.stamp = stamp_of(self.entity)
        self._lock_id, self.tenures = check_put(self)
        return self.stamp

    def _creates(self) -> bool:
        if not self.fenced:
            return False
        if self.new_id:
            # Other code may know the id that ndb has allocated for it in a transaction.
            return self.attempt is not None
        if self.stamp is not None and self.stamp.version != provenance.DELETED:
            return False
        if (
            self.stamp is not None  # it was read, and is created again
            or self._inserts
            or self._model._write_policy is WritePolicy.WRITE_ONCE
            or self._ledger.was_allocated(self.key)
        ):
            return True
        return not self._model._overwrites and self._settings.blind_overwrites is Reaction.RAISE

    def _known_rows(self) -> tuple[Any, ...] | None:
        """Return the keys of the entity's rows in Datastore; None if they are not known."""
        before: Any = self.attempt and self.attempt.latest.get(self.key)
        while before is not None:
            if before.deleting:
                return None  # the stored entity may have any
            before = before._before
        if self.stamp is not None and (self.base_version or self._read_here):
            return self.stamp.claims
        return () if self.new_id or self.must_be_new else None

    def _check_other_object(self, last: Any) -> None:
        """Refuse a second object of an entity in one transaction: it would undo the first put."""
        if last is None or last.deleting or last.entity is self.entity:
            return
        if not self.fenced or self.new_id:
            return
        if self.stamp is None and not self.must_be_new:
            return  # it is meant to overwrite
        error = self.refused(0)
        place = last.place or "a place that is not known"
        error.add_note(
            f"This transaction itself has put another object of it, at {place}. To fix it: read "
            f"the entity once in a transaction, and put that object."
        )
        raise error

    def sends(self, content: Any) -> None:
        """Report an object that an earlier attempt has put, and this attempt has changed again."""
        self.content = content
        assert self.attempt is not None
        if not self.attempt.earlier or not self.enforced:
            return
        before = [each for each in self.attempt.earlier if each.entity is self.entity]
        nth = sum(each.entity is self.entity for each in self.attempt.tickets) - 1
        if nth >= len(before) or before[nth].stamp is not self.stamp:
            return
        # A put may set times, and its write id.
        own, old = self.write_id[0] if self.write_id else None, before[nth].content
        changed = [
            name
            for name, value in content.items()
            if name != own and not hasattr(value, "utctimetuple") and old.get(name) != value
        ]
        if changed:
            self._error = self._violation(
                errors.WrongTransaction,
                f"an earlier attempt of the transaction has put this object, and this one has "
                f"changed {', '.join(changed)} once more. Read it in the transaction",
            )
            report(self._error)
            self._error = None

    def _begun(self, attempt: Attempt, future: Any) -> None:
        # Otherwise ndb could not make a message: nothing is put.
        if not self.new_id and not (future.done() and tasklets.Future.exception(future)):
            super()._begun(attempt, future)

    def landed(self, outcome: Landed) -> None:
        """Stamp the object: it stands for the stored version now."""
        entity = self.entity
        key = None if self.new_id and not is_complete(self.key) else self.key
        version = provenance.OVERTAKEN if outcome.overtaken else outcome.version
        claims = self.claimed if entity._userlock_rows is not None else None
        held, order = self.held, self.order  # before failures of later ones
        stamp = Stamp(key, version, self.place, self._lock_id, held, None, order, claims)
        # It may have been given another key meanwhile.
        if key is None or key is entity._userlock_key or key == entity._userlock_key:
            entity._userlock_stamp = stamp
        if key is not None:
            self._ledger.saw(stamp, put=True)


def _write_through(entity: Any) -> None:
    # ndb keeps values that were assigned to dynamic properties once more in the object, beside the
    # property, whose first value it would store.
    for name in [name for name in vars(entity) if not name.startswith("_")]:
        value = vars(entity).pop(name)
        delattr(entity, name)
        setattr(entity, name, value)


class Delete(Write):
    """One delete. It builds on the version that its request has last seen, if there is one."""

    deleting = True

    def ticketed(self, ds_key: Any, content: Any = None) -> Any:
        if not self.checked and self._error is None:
            try:
                self._check()
            except Exception as error:
                self._error = error
                raise
        return super().ticketed(ds_key)

    def _check(self) -> None:
        """Check it, after the model's hook has run."""
        if self._flying and self.begun_in.transaction is None:
            wait_for_key(self.key, self._flying)
        self._look_around()
        seen = self._ledger.last(self.key)
        self._lock_id, self.tenures = check_delete(self, self._model, self.key, seen)
        self.stamp = seen  # from here on: a violation of the check names no place of a read
        self._check_in()
        if self._model._userlock_always_fenced and not self.base_version and self.attempt is None:
            raise self.refused(0)  # the version that its request has seen is forgotten
        rows = self._model._userlock_rows
        if rows is not None:
            self.rows, self.further = rows.Claims(), rows

    def landed(self, outcome: Landed) -> None:
        """Note it: a put of an object of that version creates the entity again."""
        before = self._before  # in its transaction: it has landed just now
        put = None if before is None else before.entity
        self._ledger.deleted(self.key, self.read_version if put is None else version_of(put))


class _Group(NamedTuple):
    """The writes of one `put_multi` or `delete_multi`, and the write that it begins in."""

    writes: list[Any]
    around: Write | None


_writing: contextvars.ContextVar[Any] = contextvars.ContextVar("userlock_writing", default=None)
_group: contextvars.ContextVar[Any] = contextvars.ContextVar("userlock_group", default=None)

writing = _writing.get  # returns the write that begins here, or None


def begin_together(begin_all: Callable[..., list[Any]], items: Any, **options: Any) -> list[Any]:
    """Begin the puts of entities, or the deletes of keys: all, or none if one is refused."""
    items, context = list(items), current_context()
    flying = {} if context is None or context.transaction else request_notes().flying
    if flying:  # a write that has to wait would send those before it
        for each in items:
            wait_for_key(_key_of(each), flying)
    group = _Group([], _writing.get())
    token = _group.set(group)
    try:
        return begin_all(items, **options)
    except Exception:
        for write in reversed(group.writes):
            write.withdraw()
        for key in map(_key_of, items):  # of those after it, too
            if key is not None and is_complete(key):
                request_notes().ledger.failed(key)
        raise
    finally:
        _group.reset(token)


def _key_of(item: Any) -> Any:
    return item if isinstance(item, ndb.Key) else getattr(item, "_userlock_key", None)


def results_of(futures: list[Any]) -> list[Any]:
    """Wait for writes that were begun together. The first error tells of all of them."""
    results = []
    for future in futures:
        try:
            results.append(future.result())
        except Exception as first:
            for other in futures if future.done() else ():  # else the wait was interrupted
                other.wait()
                error = other.exception()
                if error is not None and error is not first:
                    first.add_note(f"Another write of this call failed as well: {error}")
            raise
    return results
