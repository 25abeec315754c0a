"""Fenced writes: tickets and their outcomes.

Datastore reports the version of each entity that it returns, and skips a
mutation whose `base_version` differs from the stored version. So it refuses a
write that its lock failed to protect:

    A                         Datastore (version 7)      B
    get ────────────────────▶ v7 ◀────────────────────── get
    (its lease runs out)                                 (takes the lock)
                              v8 ◀────────────────────── put, base_version 7
    put, base_version 7 ────▶ conflict: v8 stays
    StaleWriteError

A new object with a key of its own is sent as an insert, where ndb would send an
upsert. Each put and each delete has a ticket, whose number travels with the key
to the Commit request (`wire`). There the gate (`stub`) exchanges it for the
version that the write builds on.
"""

from __future__ import annotations

import abc
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from userlock.callsite import CallSite
from userlock.errors import (
    CommitInDoubt,
    EntityExistsError,
    LeaseRanOut,
    LeaseWasLost,
    NotUnique,
    PutAfterRelease,
    StaleWriteError,
    WriteAfterCommit,
    WriteNotFenced,
    WriteViolation,
)
from userlock.events import LISTENERS, BlindOverwrite, StaleWrite
from userlock.lock.held_lock import HeldLock
from userlock.ndb import capabilities
from userlock.ndb.claims import Claim, set_claims
from userlock.ndb.commits import Landed, Outcome, Refused, Taken, Unguarded, WantedClaim
from userlock.ndb.context import (
    Attempt,
    cached_entities,
    current_attempt,
    forget_cached,
    in_flight,
    request_notes,
)
from userlock.ndb.enforcement import Moment, report
from userlock.ndb.patches import is_complete, ndb_key_of, path_of, raw_key_of, same_key
from userlock.ndb.pending import Failure, PendingWrite, books_of_request, error_of, note_failure
from userlock.ndb.policies import WritePolicy, policy_for_message
from userlock.ndb.provenance import (
    DELETED,
    OVERTAKEN,
    LastPut,
    Stamp,
    keep,
    last_puts,
    last_stamp,
    latest_of,
    restamp,
    stamp_of,
    stamp_of_put,
)
from userlock.ndb.wire import kind_in
from userlock.reports import REPORTS
from userlock.settings import Reaction

#: The tickets that may still be redeemed. The futures and transactions of their writes keep them.
_open: dict[int, weakref.ref[Ticket]] = {}


def _close(number: int, _: object) -> None:
    _open.pop(number, None)


def redeem(number: int, path: tuple[Any, ...], namespace: str) -> Ticket | None:
    """Return the ticket with that number, once, if it is for the entity with that key."""
    found = _open.pop(number, None)
    ticket = None if found is None else found()
    return ticket if ticket is not None and ticket.is_for(path, namespace) else None


class Ticket(PendingWrite, abc.ABC):
    """One put or delete, from its check to the commit's answer. Implements `commits.Write`.

    Args:
        key: the entity's key, which may be incomplete or None.
        stamp: the stamp of the read that it builds on, if any.
        tenures: the tenures that it runs under.
    """

    must_be_new = may_overwrite = False
    deleting = False
    write_id: tuple[str, int] | None = None
    claims: Sequence[WantedClaim] | None = None
    known_claims: Sequence[Any] = ()
    #: The keys of the claims that its entity will have.
    claimed: tuple[Any, ...] = ()
    withdrawn = doubtful = False
    failure: Failure | None = None

    def __init__(
        self,
        key: Any,
        model: Any,
        lock_id: str | None,
        stamp: Stamp | None,
        tenures: tuple[HeldLock, ...],
        now: Moment,
    ) -> None:
        super().__init__(now.context)
        self._key = key
        self._model = model
        self._lock_id = lock_id
        self._stamp = stamp
        self._tenures = tenures
        self._checked_tenures = tenures if now.checked else ()
        self._now = now
        self._notes = request_notes()
        self._notes.note_cache(now.context.cache)
        #: As the key was before Datastore allocates an id.
        self._path: tuple[Any, ...] = (model._get_kind(),) if key is None else path_of(key)
        self._namespace = None if key is None else key.namespace() or None
        self.new_id = len(self._path) % 2 == 1
        self._flying_in: dict[Any, Any] | None = None
        #: Restore the history of puts, if it is withdrawn.
        self._undo: list[Callable[[], object]] = []
        self.attempt: Attempt | None = None if now.transaction is None else current_attempt()
        if self.attempt is not None and self.attempt.over:
            raise self._violation(WriteAfterCommit)
        self.read_version = 0 if stamp is None else max(stamp.version, 0)
        self.base_version = 0
        if stamp is not None and now.fenced and not stamp.is_of(now.transaction):
            if stamp.version == OVERTAKEN:
                raise self.refused(0)
            if stamp.version == 0:
                raise self._not_fenced(
                    "it was read without its version, so nobody could tell whether it has changed "
                    "since",
                    "read it again, from Datastore itself (not from a message or a cache, and not "
                    "from a server that reports no versions)",
                )
            self.base_version = self.read_version
        if self.attempt is not None:
            self.attempt.tickets.append(self)
        elif self.base_version:
            capabilities.require_base_version(now.context.client, self._not_fenced)
        _open[self.number] = weakref.ref(self, functools.partial(_close, self.number))

    # --- on its way -------------------------------------------------------------------------

    def begun(self, future: Any) -> None:
        """Note that the write is on its way."""
        if self.attempt is None and not self.new_id:
            self._flying_in = in_flight(self.begun_in)
            self._flying_in[self._key] = self
        self.enter(future, self._tenures)

    def _over(self, future: Any) -> None:
        """Note that it has landed or failed, or waits for the commit of its transaction."""
        super()._over(future)
        error = error_of(future)
        self._ended(error is not None)
        if self._flying_in is not None and self._flying_in.get(self._key) is self:
            del self._flying_in[self._key]
        if error is not None and not self.withdrawn:
            self.future = future
            self.failure = note_failure(error, self.entity_key, self._tenures, self._notes)
            if self.failure is not None:
                self.failure.lies_in(future, error)

    def _ended(self, failed: bool) -> None:
        """Take the first part of the outcome: whether ndb's future has failed."""

    @property
    def entity_key(self) -> Any:
        """Return the entity's key, as far as it is known by now."""
        return self._key

    def withdraw(self) -> None:
        """Do not send the write, unless it was sent. Its caller gets another error."""
        if self.number in _open:
            self.withdrawn = True
            while self._undo:
                self._undo.pop()()

    def _put_into(self, history: dict[Any, LastPut], key: Any, last: LastPut | None) -> None:
        """Make this the latest put of an entity. None removes the entry."""
        before = history.get(key)

        def undo() -> None:
            if history.get(key) is last:
                _set(history, key, before)

        _set(history, key, last)
        self._undo.append(undo)

    def is_for(self, path: tuple[Any, ...], namespace: str | None) -> bool:
        """Return whether it is for the entity with that key, whose id may have been allocated."""
        if self.new_id:
            return path[: len(self._path)] == self._path and len(path) - len(self._path) < 2
        return path == self._path and (namespace or None) == self._namespace

    def has(self, ds_key: Any) -> bool:
        """Return whether that is its key, as a key of google-cloud-datastore's."""
        if self._key is not None and self._key._key is ds_key:
            return True
        return self.is_for(ds_key.flat_path, ds_key.namespace)

    @property
    def relies_on_its_locks(self) -> bool:
        """Return whether only its locks protect it: Datastore would not refuse it."""
        if self._stamp is not None and self._stamp.is_of(self._now.transaction):
            return False  # its transaction does
        return bool(self._tenures) and not (self.base_version or self.must_be_new or self.new_id)

    def check_commit(self) -> None:
        """Check that its locks have been held until the commit.

        Raises a `WriteViolation` otherwise. ndb rolls back then, and does not run the transaction
        again: the error is not transient.
        """
        when = "its transaction was about to commit"
        if self.attempt is None:
            when = "it was about to be sent"
        for kind, detail in self._lapses(when):
            report(self._violation(kind, detail))

    def trying_again(self) -> None:
        """Check the leases of the locks around its transaction, before another attempt of it.

        Locks that were taken inside the transaction are taken again.
        """
        for kind, detail in self._lapses("its transaction was about to be run again"):
            if kind is not PutAfterRelease:
                report(self._violation(kind, detail))

    @property
    def guarded(self) -> bool:
        """Return whether Datastore, or a lock that is still held, protects it.

        Plans ask in gRPC's threads.
        """
        if not self.relies_on_its_locks or not self._now.raises:
            return True
        return next(self._lapses(""), None) is None

    def _lapses(self, when: str) -> Iterator[tuple[type[WriteViolation], str]]:
        """Yield the violation and the details of each lock that is not held any more."""
        for tenure in self._checked_tenures:
            if not tenure.held:
                yield PutAfterRelease, when
            elif tenure.lost:
                yield LeaseWasLost, tenure.lost
            elif tenure.ran_out:
                held = f"{tenure.held_seconds:.3g} s after the lock was taken"
                yield LeaseRanOut, f"{when} {held}"

    # --- its outcome ------------------------------------------------------------------------

    def settle(self, outcome: Outcome, others_landed: int) -> Exception | None:
        """Take the outcome. Returns the error for the caller of the write, if there is one."""
        if isinstance(outcome, Landed):
            for books in (*self._books, books_of_request(self._notes)):
                books.forget(self.entity_key)
            self.landed(outcome)
            return None
        if isinstance(outcome, Refused):
            return self.refused(
                outcome.found_version,
                others_landed=others_landed,
                may_have_landed=outcome.may_have_landed,
            )
        self._leave_caches()
        if isinstance(outcome, Taken):
            return NotUnique(
                key=self._key,
                kind=kind_in(self._path),
                constraint=outcome.claim.constraint,
                value=outcome.claim.value,
                holder=ndb_key_of(outcome.holder),
                put_at=self._now.at,
            )
        cause: Exception
        if isinstance(outcome, Unguarded):
            when = "it was about to be sent"
            cause = self._violation(*next(self._lapses(when), (LeaseRanOut, when)))
            if not outcome.may_have_landed:
                return cause
        else:
            cause = outcome.cause
        error = CommitInDoubt(**self._facts, kind=kind_in(self._path))
        error.__cause__ = cause
        return error

    @property
    def unseen_error(self) -> BaseException | None:
        """Return the error that it has ended with, as long as nobody has asked for it."""
        if self.failure is None or not self.failure.unseen:
            return None
        return error_of(self.future)

    @abc.abstractmethod
    def landed(self, outcome: Landed) -> None:
        """Note that it is in Datastore."""

    def refused(self, version: int, **facts: Any) -> StaleWriteError:
        """Take a conflict: the entity leaves the caches, and listeners hear of it."""
        kind = EntityExistsError if self.must_be_new else StaleWriteError
        error: StaleWriteError = self._stale_write(kind, version, **facts)
        self._leave_caches()
        if not self._model._userlock_expects_conflicts:
            LISTENERS.emit(StaleWrite(self._lock_id, error))
        return error

    def _leave_caches(self) -> None:
        """Have the next read ask Datastore. A delete without one still builds on what was read."""
        forget_cached(self._key, self.begun_in)
        keep(self._notes, self._stamp)

    def withdrawn_error(self) -> Exception:
        """Return the error of a write that its caller has withdrawn."""
        return self._not_fenced(
            "another write that was begun with it was refused, so it was not sent",
            "see the error of that write",
        )

    # --- its errors -------------------------------------------------------------------------

    @property
    def _read_at(self) -> CallSite | None:
        return None if self._stamp is None else self._stamp.place

    @property
    def _facts(self) -> dict[str, Any]:
        """Return the facts that each error about this write has."""
        return {
            "key": self._key,
            "lock_id": self._lock_id,
            "put_at": self._now.at,
            "deleting": self.deleting,
        }

    def _not_fenced(self, reason: str, remedy: str) -> WriteNotFenced:
        kind = kind_in(self._path)
        return WriteNotFenced(**self._facts, kind=kind, reason=reason, remedy=remedy)

    def _stale_write(self, kind: Any, found_version: int = 0, **facts: Any) -> Any:
        return kind(
            **self._facts,
            **facts,
            read_version=self.base_version,
            found_version=found_version,
            read_at=self._read_at,
            locked=self._model._write_policy is WritePolicy.USER_LOCK,
        )

    def _violation(self, kind: type[WriteViolation], detail: str = "") -> WriteViolation:
        return kind(
            **self._facts,
            kind=kind_in(self._path),
            policy=policy_for_message(self._model),
            read_at=self._read_at,
            detail=detail,
        )


def _set(history: dict[Any, LastPut], key: Any, last: LastPut | None) -> None:
    if last is None:
        history.pop(key, None)
    else:
        history[key] = last


class PutTicket(Ticket):
    """One put. `inserts`: the entity must be new, whatever its class says."""

    def __init__(
        self,
        entity: Any,
        lock_id: str | None,
        stamp: Stamp | None,
        tenures: tuple[HeldLock, ...],
        now: Moment,
        claims: Sequence[Claim],
        *,
        inserts: bool,
    ) -> None:
        super().__init__(entity._key, type(entity), lock_id, stamp, tenures, now)
        self._entity = entity
        self._last_puts: list[LastPut] = []
        reaction = self._reaction_to_overwriting(inserts)
        # Other code may know the id that ndb has allocated for it in a transaction.
        allocated = self.new_id and self.attempt is not None and now.fenced
        self.must_be_new = allocated or reaction is not Reaction.OFF
        self.may_overwrite = reaction is Reaction.WARN
        self._check_other_object()
        if entity._userlock_constraints:
            self._claim(claims)
        if entity._userlock_new_write_id is not None:
            self.write_id = entity._userlock_new_write_id(entity)
        if stamp is None:
            # It may have been given another key: a delete under the first one builds on its read.
            keep(self._notes, last_stamp(entity))

    @property
    def entity_key(self) -> Any:
        return self._entity._key

    def _claim(self, claims: Sequence[Claim]) -> None:
        """Note the entity's claims, unless those in Datastore are the same for certain."""
        known: tuple[Any, ...] | None = None
        stamp = self._stamp
        if self.base_version or (stamp is not None and stamp.is_of(self._now.transaction)):
            known = self._entity._userlock_claims
        elif self.new_id or (self.must_be_new and not self.may_overwrite):
            known = ()
        if self.attempt is not None and self._key in self.attempt.deleted:
            known = None  # the stored entity may have any
        set_claims(self._entity, claims)
        self.claimed = tuple(claim.key for claim in claims)
        if known is None or set(known) != set(self.claimed):
            self.claims = [WantedClaim(raw_key_of(each.key), *each[1:]) for each in claims]
            self.known_claims = [raw_key_of(each) for each in known or ()]

    def _reaction_to_overwriting(self, inserts: bool) -> Reaction:
        """Return the reaction if a new object meets an existing entity; `OFF` if it may."""
        new = self._stamp is None or self._stamp.version == DELETED
        if not new or not self._now.fenced or self.new_id:
            return Reaction.OFF
        allocated = self._entity._userlock_allocated is self._key
        if inserts or allocated or self._model._write_policy is WritePolicy.WRITE_ONCE:
            return Reaction.RAISE
        return Reaction.OFF if self._model._overwrites else self._now.settings.blind_overwrites

    def _check_other_object(self) -> None:
        """Refuse a second object of an entity in one transaction, under every policy.

        The transaction would send both. The second does not have the first one's change, and
        would undo it.
        """
        if self.attempt is None or not self._now.fenced or self.new_id:
            return
        last = self.attempt.puts.get(self._key)
        if last is None or last.is_by(self._entity):
            return
        if self._stamp is None and not self.must_be_new:
            return  # it is meant to overwrite
        if self.may_overwrite:
            self._warn_of_overwriting()
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
        histories: list[HeldLock | None] = [*self._tenures]
        if transaction is not None:
            histories.append(None)
        if error_of(future) is None:  # otherwise ndb could not make a message: nothing is put
            for tenure in histories:
                last = LastPut(self._entity, self._now.at, transaction)
                self._last_puts.append(last)
                if not self.new_id:
                    self._put_into(last_puts(tenure), self._key, last)
        super().begun(future)

    def _ended(self, failed: bool) -> None:
        for last in self._last_puts:
            last.under_way = last.transaction is not None and not failed
        if self.new_id and not failed:
            # An id has been allocated, and the application has not changed the key again yet.
            self._key = self._entity._key
            stamp_of(self._entity)  # the stamp learns the key as well
            if self.attempt is not None:
                self.attempt.puts[self._key] = self._last_puts[-1]
                self._entity._userlock_allocated = self._key

    def landed(self, outcome: Landed) -> None:
        """Stamp the object: it stands for the stored version now."""
        if outcome.overwrote:
            self._warn_of_overwriting()
        key = self._key if is_complete(self._key) else None
        held, place = self._now.held, self._now.at
        version = OVERTAKEN if outcome.overtaken else outcome.version
        if key is None or same_key(key, self._entity._key):
            restamp(self._entity, key, version, place, held=held, lock_id=self._lock_id)
            if self._entity._userlock_constraints:
                self._entity._userlock_claims = self.claimed
            if key is not None and self._another_is_known(key):
                keep(self._notes, stamp_of(self._entity))
        else:
            # It was given another key meanwhile, under which it may have landed before.
            keep(self._notes, stamp_of_put(key, version, place, held=held, lock_id=self._lock_id))
        for last in self._last_puts:
            last.version = version
            last.under_way = False

    def _another_is_known(self, key: Any) -> bool:
        """Return whether a delete might build on an earlier read, of another object."""
        others = any(each is not self._entity for each in cached_entities(key))
        return others or key in self._notes.kept

    def _warn_of_overwriting(self) -> None:
        """Report that a new object has overwritten an entity that the code had not read."""
        error = self._stale_write(EntityExistsError)
        count = REPORTS.count(error, kind_in(self._path), self._now.at, None)
        LISTENERS.emit(BlindOverwrite(self._lock_id, error, count))


class DeleteTicket(Ticket):
    """One delete. It carries the version of the read, as far as that is known.

    Under the entity's lock it does so only if the read was under the same tenure: the code has
    taken the lock since, and does not rely on an earlier read.
    """

    deleting = True

    def __init__(
        self,
        key: Any,
        cls: Any,
        objects: list[Any],
        lock_id: str | None,
        stamp: Stamp | None,
        tenure: HeldLock | None,
        now: Moment,
    ) -> None:
        #: A put of one of these after the delete creates the entity again.
        self._objects = objects
        # If the lock of the entity is unknown, the tenure is of an arbitrary lock, which does not
        # tell the reads that count.
        known = stamp if lock_id is None else _stamp_under(tenure, stamp, now.transaction)
        if known is not None and known.version == DELETED:
            known = None
        super().__init__(key, cls, lock_id, known, () if tenure is None else (tenure,), now)
        if cls._userlock_constraints:
            self.claims = ()
        last = None
        if tenure is not None:
            last = last_puts(tenure).get(key)
            self._put_into(last_puts(tenure), key, None)
        if (
            last is not None
            and last.version > 0
            and self.base_version
            and known is not None
            and last.order > known.order
        ):
            self.base_version = last.version  # another object than the known one was put
        if self.attempt is not None:
            if key not in self.attempt.deleted:
                self.attempt.deleted.add(key)
                self._undo.append(functools.partial(self.attempt.deleted.discard, key))
            self._put_into(self.attempt.puts, key, None)
        if known is not None:
            # If the delete does not land, the next attempt of its transaction builds on this.
            keep(self._notes, known._replace(version=self.base_version or known.version))

    def landed(self, outcome: Landed) -> None:
        """Stamp the entity's objects: a put of one of them creates the entity again."""
        self._notes.kept.pop(self._key, None)
        for entity in self._objects:
            stamp = stamp_of(entity)
            if stamp is not None and same_key(stamp.key, self._key):
                restamp(entity, stamp.key, DELETED, held=stamp.held)


def _stamp_under(
    tenure: HeldLock | None, stamp: Stamp | None, transaction: bytes | None
) -> Stamp | None:
    """Return the stamp of a read under this tenure, or in the transaction."""
    if stamp is None or tenure is None or stamp.held.get(tenure.lock_id) is tenure:
        return stamp
    return stamp if stamp.is_of(transaction) else None


def stamp_for_delete(ndb_key: Any, objects: list[Any], now: Moment) -> Stamp | None:
    """Return the stamp that this request has of an entity that is to be deleted."""
    stamps = [stamp for each in objects if (stamp := last_stamp(each)) is not None]
    stamps = [stamp for stamp in stamps if same_key(stamp.key, ndb_key)]
    stamps += request_notes().kept.get(ndb_key, ())
    return latest_of(stamps, now.held, now.transaction)
