"""Fenced writes: tickets, and what becomes of them.

Datastore reports the version of each entity it returns, and skips a mutation
whose `base_version` is not the version it has (comments on `Mutation` and
`MutationResult` in google.datastore.v1). So a write that its lock failed to
protect, because the lease ran out or memcached forgot it, is refused by
Datastore itself, without another round trip:

    A                         Datastore (version 7)      B
    get ────────────────────▶ v7 ◀────────────────────── get
    (its lease runs out)                                 (takes the lock)
                              v8 ◀────────────────────── put, base_version 7
    put, base_version 7 ────▶ conflict: v8 stays
    StaleWriteError

A new object whose key is known is sent as an insert rather than ndb's upsert,
so that of two requests that both found nothing and create it, one wins and
the other is told.

Each put and each delete is a ticket of its own. Its number travels with the
key to the Commit request (`wire`), where the gate (`stub`) exchanges it for what
the write builds on. Nothing about a put under way is kept on the entity.
"""

from __future__ import annotations

import abc
import functools
import itertools
import threading
import weakref
from typing import Any, TypeVar

from userlock.callsite import CallSite
from userlock.errors import (
    CommitInDoubt,
    EntityExistsError,
    LeaseRanOut,
    LeaseWasLost,
    PutAfterRelease,
    StaleWriteError,
    WriteAfterCommit,
    WriteNotFenced,
    WriteViolation,
)
from userlock.events import LISTENERS, BlindOverwrite, StaleWrite
from userlock.lock.held_lock import HeldLock
from userlock.ndb import capabilities
from userlock.ndb.commits import Landed, Outcome, Refused
from userlock.ndb.context import (
    Attempt,
    cached_entities,
    current_attempt,
    forget_cached,
    in_flight,
    request_notes,
)
from userlock.ndb.enforcement import Moment, report
from userlock.ndb.patches import is_complete, path_of, same_key
from userlock.ndb.policies import WritePolicy, policy_for_message
from userlock.ndb.provenance import (
    DELETED,
    LastPut,
    Stamp,
    last_puts,
    last_stamp,
    restamp,
    stamp_of,
)
from userlock.ndb.transactions import error_of, note_pending, untold_error
from userlock.ndb.wire import kind_in
from userlock.reports import REPORTS
from userlock.settings import Reaction

AnyViolation = TypeVar("AnyViolation", bound=WriteViolation)

_numbers = itertools.count(1)
#: The tickets that may still be redeemed. Kept by the futures and transactions of their writes.
_open: dict[int, weakref.ref[Ticket]] = {}


def _close(number: int, _: object) -> None:
    _open.pop(number, None)


class Ticket(abc.ABC):
    """One put or delete, from its check to the commit's answer. Implements `commits.Write`.

    Args:
        key: the entity's key, which may be incomplete or None.
        lock_id: the lock that guards it, if one does.
        stamp: what it builds on; None for nothing.
        tenures: those that it runs under.
        at: where it was asked for.
        now: what holds now.
    """

    must_be_new = may_overwrite = False
    deleting = False
    mark: tuple[str, int] | None = None

    def __init__(
        self,
        key: Any,
        lock_id: str | None,
        stamp: Stamp | None,
        tenures: tuple[HeldLock, ...],
        at: CallSite | None,
        now: Moment,
    ) -> None:
        self.number = next(_numbers)
        self.begun_in = now.context
        self.begun_by = threading.get_ident()
        #: Its outcome to be: while it is on its way, and until somebody is told of an error.
        self.future: Any = None
        self._flying_in: dict[Any, Any] | None = None
        self._pending_in: list[dict[int, Any]] = []
        self.withdrawn = False
        self.doubtful = False
        #: Of its key, before Datastore allocates an id.
        self._path: tuple[Any, ...] = (self._model._get_kind(),) if key is None else path_of(key)
        self._namespace = None if key is None else key.namespace() or None
        self._kind = kind_in(self._path)
        self.new_id = len(self._path) % 2 == 1
        #: The attempt of a transaction that it is part of; None outside of any.
        self.attempt: Attempt | None = None if now.transaction is None else current_attempt()
        self._notes = request_notes()
        self._key = key
        self._lock_id = lock_id
        self._stamp = stamp
        self._tenures = tenures
        self._at = at
        self._checked = now.checked
        self._fenced = now.fenced
        self.read_version = 0 if stamp is None or stamp.version == DELETED else stamp.version
        in_its_transaction = (
            stamp is not None
            and now.transaction is not None
            and (
                stamp.transaction == now.transaction  # which answers for what was read in it
            )
        )
        self.base_version = self.read_version if now.fenced and not in_its_transaction else 0
        self._needs_version = (
            now.fenced and stamp is not None and stamp.version == 0 and not in_its_transaction
        )
        if self.attempt is not None:
            if self.attempt.over:
                raise self._violation(WriteAfterCommit)
            self.attempt.tickets.append(self)
        if self.base_version and self.attempt is None:
            capabilities.require_base_version(now.context.client, self._not_fenced)
        _open[self.number] = weakref.ref(self, functools.partial(_close, self.number))

    # --- on its way -------------------------------------------------------------------------

    def begun(self, future: Any) -> None:
        """It is on its way."""
        self.future = future
        self._pending_in = note_pending(self, self._tenures)
        if self.attempt is None and not self.new_id:
            flying = self._flying_in = in_flight(self.begun_in)
            flying[self._key] = self
        future.add_done_callback(self._done)

    def _done(self, future: Any) -> None:
        """It has landed or failed, or waits for the commit of its transaction."""
        flying = self._flying_in
        if flying is not None and flying.get(self._key) is self:
            del flying[self._key]
            if not flying:
                flying.clear()  # and with it the room that a large `put_multi` took
        if error_of(future) is None:
            self.forget()

    def forget(self) -> None:
        """Nobody need be told of it any more. It lets go of its future, which keeps it."""
        for pending in self._pending_in:
            pending.pop(self.number, None)
        future, self.future = self.future, None
        if future is not None:
            future._userlock_when_told = None

    @property
    def untold(self) -> BaseException | None:
        """Return its error, while nobody has been told of it."""
        return None if self.future is None else untold_error(self.future)

    def withdraw(self) -> None:
        """Do not send it, if it has not been sent: its caller is told of another error."""
        if self.number in _open:
            self.withdrawn = True
            if self.future is not None:
                self.future._userlock_told = True

    def is_for(self, path: tuple[Any, ...], namespace: str | None) -> bool:
        """Return whether it is for the entity with that key; its id may have been allocated."""
        if self.new_id:
            return path[: len(self._path)] == self._path and len(path) - len(self._path) < 2
        return path == self._path and (namespace or None) == self._namespace

    def has(self, ds_key: Any) -> bool:
        """Return whether that is its key, as Datastore's library has it."""
        if self._key is not None and self._key._key is ds_key:
            return True
        return self.is_for(ds_key.flat_path, ds_key.namespace)

    @property
    def relies_on_its_locks(self) -> bool:
        """Return whether nothing but its locks protects it: Datastore would not refuse it."""
        return bool(self._tenures) and not (self.base_version or self.must_be_new or self.new_id)

    def check_commit(self) -> None:
        """Its locks must have been held until here.

        Raises:
            LeaseRanOut, LeaseWasLost, PutAfterRelease: they have not. Not transient errors, so
                ndb rolls back and does not try again.
        """
        what = "it was about to be sent"
        when = what if self.attempt is None else "its transaction was about to commit"
        for tenure in self._tenures if self._checked else ():
            if tenure.held:
                self._check_lease(tenure, when)
            else:
                report(self._violation(PutAfterRelease, when))

    def trying_again(self) -> None:
        """Its transaction is about to be run again: the locks around it must still be held.

        Those that were taken inside are taken again.

        Raises:
            LeaseRanOut, LeaseWasLost: one is not.
        """
        for tenure in self._tenures if self._checked else ():
            if tenure.held:
                self._check_lease(tenure, "its transaction was about to be run again")

    def _check_lease(self, tenure: HeldLock, when: str) -> None:
        if tenure.lost:
            report(self._violation(LeaseWasLost, tenure.lost))
        elif tenure.ran_out:
            held = f"{tenure.held_seconds:.3g} s after the lock was taken"
            report(self._violation(LeaseRanOut, f"{when} {held}"))

    # --- its outcome ------------------------------------------------------------------------

    def settle(self, outcome: Outcome, others_landed: int) -> Exception | None:
        """Take the outcome. Returns the error for whoever has asked for the write, if any."""
        if isinstance(outcome, Landed):
            self.landed(outcome.version, outcome.overwrote)
            return None
        if isinstance(outcome, Refused):
            return self.refused(
                outcome.found_version,
                others_landed=others_landed,
                may_have_landed=outcome.may_have_landed,
            )
        error = self.in_doubt()
        error.__cause__ = outcome.cause
        return error

    @abc.abstractmethod
    def landed(self, version: int, overwrote: bool = False) -> None:
        """It is in Datastore, as `version`."""

    def refused(
        self, version: int, *, others_landed: int = 0, may_have_landed: bool = False
    ) -> StaleWriteError:
        """Somebody else wrote it first: it leaves the caches, and listeners hear of it."""
        kind = EntityExistsError if self.must_be_new else StaleWriteError
        error = kind(
            **self._facts,
            read_version=max(self.base_version, 0),
            found_version=version,
            read_at=self._read_at,
            others_landed=others_landed,
            may_have_landed=may_have_landed,
            locked=self._is_locked,
        )
        forget_cached(self._key, self.begun_in)
        if self._stamp is not None and self._stamp.version > 0:
            # A delete of what the caches no longer have is still one of what was read.
            self._notes.left[self._key] = self._stamp
        LISTENERS.emit(StaleWrite(self._lock_id, error))
        return error

    def in_doubt(self) -> CommitInDoubt:
        """Nobody can tell whether it was applied."""
        forget_cached(self._key, self.begun_in)
        return CommitInDoubt(**self._facts, kind=self._kind)

    def withdrawn_error(self) -> Exception:
        """Return the error of a write that its caller has withdrawn."""
        return WriteNotFenced(
            **self._facts,
            kind=self._kind,
            reason="another write that was begun with it was refused, so it was not sent",
            remedy="see the error of that write",
        )

    def _not_fenced(self, reason: str, remedy: str) -> WriteNotFenced:
        return WriteNotFenced(**self._facts, kind=self._kind, reason=reason, remedy=remedy)

    def _check_version(self) -> None:
        """Refuse what was read without a version: nobody could tell whether it has changed."""
        if self._needs_version:
            raise self._not_fenced(
                "it was read without its version, so nobody could tell whether it has changed "
                "since",
                "read it again, from Datastore itself (not from a message or a cache, and not "
                "from a server that reports no versions)",
            )

    # --- its facts --------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def _model(self) -> Any:
        """Return the entity's class."""

    @property
    def _is_locked(self) -> bool:
        return self._model._write_policy is WritePolicy.USER_LOCK

    @property
    def _read_at(self) -> CallSite | None:
        return None if self._stamp is None else self._stamp.place

    @property
    def _facts(self) -> dict[str, Any]:
        """Return the facts that each error about this write has."""
        return {
            "key": self._key,
            "lock_id": self._lock_id,
            "put_at": self._at,
            "deleting": self.deleting,
        }

    def _violation(self, kind: type[AnyViolation], detail: str = "") -> AnyViolation:
        return kind(
            **self._facts,
            kind=self._kind,
            policy=policy_for_message(self._model),
            read_at=self._read_at,
            detail=detail,
        )


class PutTicket(Ticket):
    """One put."""

    def __init__(
        self,
        entity: Any,
        lock_id: str | None,
        stamp: Stamp | None,
        tenures: tuple[HeldLock, ...],
        put_at: CallSite | None,
        now: Moment,
        *,
        inserts: bool,
    ) -> None:
        self._entity = entity
        super().__init__(entity._key, lock_id, stamp, tenures, put_at, now)
        self._held = now.held
        self._last_puts: list[LastPut] = []
        reaction = self._reaction_to_overwriting(now, inserts)
        # Once ndb has an id allocated for it, in a transaction, others may know that as well.
        allocated = self.new_id and self.attempt is not None and now.fenced
        self.must_be_new = allocated or reaction is not Reaction.OFF
        self.may_overwrite = reaction is Reaction.WARN
        self._check_version()
        self._check_other_object()
        mark = type(entity)._userlock_mark
        if mark is not None:
            self.mark = mark(entity)
        before = None if stamp is not None else last_stamp(entity)
        if before is not None:
            # It was given another key: the delete of the first one builds on what was read.
            self._notes.left[before.key] = before

    @property
    def _model(self) -> Any:
        return type(self._entity)

    def _reaction_to_overwriting(self, now: Moment, inserts: bool) -> Reaction:
        """Return the reaction to an entity that exists already; `OFF` if it may exist.

        It must not for a new object with a key of its own.
        """
        new = self._stamp is None or self._stamp.version == DELETED
        if not new or not now.fenced or self.new_id:
            return Reaction.OFF
        cls = type(self._entity)
        allocated = self._entity._userlock_allocated is self._key
        if inserts or allocated or cls._write_policy is WritePolicy.WRITE_ONCE:
            return Reaction.RAISE
        return Reaction.OFF if cls._overwrites else now.settings.blind_overwrites

    def _check_other_object(self) -> None:
        """Refuse a second object of an entity in one transaction, whatever the policy.

        The transaction sends both: the second, which does not have the first
        one's change, would undo it.
        """
        if self.attempt is None or not self._fenced or self.new_id:
            return
        last = self.attempt.puts.get(self._key)
        if last is None or last.is_by(self._entity):
            return
        if self._stamp is None and not self.must_be_new:
            return  # it is meant to overwrite
        if self.may_overwrite:
            self._tell_of_overwriting()
            return
        error = self.refused(0)
        place = last.place or "a place that is not known"
        error.add_note(
            f"This transaction itself has put another object of it, at {place}. To fix it: read "
            f"the entity once in a transaction, and put that object."
        )
        raise error

    def begun(self, future: Any) -> None:
        transaction = self.begun_in.transaction
        where: tuple[HeldLock | None, ...] = self._tenures
        if transaction is not None:
            where = (*where, None)
        if error_of(future) is not None:
            where = ()  # ndb could not even make a message of it: nothing has been put
        for tenure in where:
            last = LastPut(self._entity, self._at, transaction)
            self._last_puts.append(last)
            if not self.new_id:
                last_puts(tenure)[self._key] = last
        super().begun(future)

    def _done(self, future: Any) -> None:
        super()._done(future)
        failed = error_of(future) is not None
        for last in self._last_puts:
            last.under_way = last.transaction is not None and not failed
        if self.new_id and not failed:
            # An id has been allocated, and the application has not changed the key again yet.
            self._key = self._entity._key
            stamp_of(self._entity)  # which then learns it, too
            if self.attempt is not None:
                self.attempt.puts[self._key] = self._last_puts[-1]
                self._entity._userlock_allocated = self._key

    def landed(self, version: int, overwrote: bool = False) -> None:
        """The entity is stored: its object now stands for that version."""
        if overwrote:
            self._tell_of_overwriting()
        key = self._key if is_complete(self._key) else None
        restamp(self._entity, key, version, self._at, held=self._held, lock_id=self._lock_id)
        for last in self._last_puts:
            last.version = version
            last.under_way = False

    def _tell_of_overwriting(self) -> None:
        """A new object has overwritten an entity that nobody has looked at."""
        error = EntityExistsError(
            **self._facts,
            read_version=0,
            found_version=0,
            read_at=self._read_at,
            locked=self._is_locked,
        )
        count = REPORTS.count(error, self._kind, self._at, None)
        LISTENERS.emit(BlindOverwrite(self._lock_id, error, count))


class DeleteTicket(Ticket):
    """One delete. It carries the version of what was read, as far as that is known.

    Under a lock: if it was read under the same tenure. Who has taken the lock
    since did not rely on it. Without a lock it is all that there is to rely on.
    """

    deleting = True

    def __init__(
        self,
        key: Any,
        cls: Any,
        lock_id: str | None,
        stamp: Stamp | None,
        tenure: HeldLock | None,
        deleted_at: CallSite | None,
        now: Moment,
    ) -> None:
        self._cls = cls
        #: They make the entity anew when they are put after this.
        self._objects = [each for each in cached_entities(key) if isinstance(each, cls)]
        known = _stamp_under(tenure, stamp, now.transaction)
        if known is not None and known.version == DELETED:
            known = None
        tenures = () if tenure is None else (tenure,)
        super().__init__(key, lock_id, known, tenures, deleted_at, now)
        self._check_version()
        last = None if tenure is None else last_puts(tenure).pop(key, None)
        if (
            last is not None
            and last.version
            and self.base_version
            and known is not None
            and last.order > known.order
        ):
            self.base_version = last.version  # put by another object than the one that is known
        if self.attempt is not None:
            self.attempt.deleted.add(key)
            self.attempt.puts.pop(key, None)
        if known is not None:
            # Should the delete not land, the next attempt of its transaction builds on it.
            self._notes.left[key] = known._replace(version=self.base_version or known.version)

    @property
    def _model(self) -> Any:
        return self._cls

    def landed(self, version: int, overwrote: bool = False) -> None:
        """The entity is gone; an object of it that is put after this creates it anew."""
        self._notes.left.pop(self._key, None)
        for entity in self._objects:
            stamp = stamp_of(entity)
            if stamp is not None and same_key(stamp.key, self._key):
                restamp(entity, stamp.key, DELETED, held=stamp.held)


def _stamp_under(
    tenure: HeldLock | None, stamp: Stamp | None, transaction: bytes | None
) -> Stamp | None:
    """Return what is known of an entity, if it was read under this tenure or in the transaction."""
    if stamp is None or tenure is None or stamp.held.get(tenure.lock_id) is tenure:
        return stamp
    return stamp if transaction is not None and stamp.transaction == transaction else None


def stamp_for_delete(ndb_key: Any, cls: Any) -> Stamp | None:
    """Return what this request knows of an entity that is to be deleted: the latest stamp."""
    stamps = [
        stamp
        for entity in cached_entities(ndb_key)
        if isinstance(entity, cls)
        and (stamp := last_stamp(entity)) is not None
        and same_key(stamp.key, ndb_key)
    ]
    left = request_notes().left.get(ndb_key)
    if left is not None:
        stamps.append(left)
    return max(stamps, key=lambda each: each.order, default=None)


def redeem(number: int, path: tuple[Any, ...], namespace: str) -> Ticket | None:
    """Return the ticket with that number, if it is for that entity. Each is given once."""
    found = _open.pop(number, None)
    ticket = None if found is None else found()
    return ticket if ticket is not None and ticket.is_for(path, namespace) else None
