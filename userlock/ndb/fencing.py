"""Fenced writes: a put lands only on the version that was read.

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
"""

from __future__ import annotations

import abc
import threading
from typing import Any, TypeVar

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
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks, server
from userlock.ndb.enforcement import Moment, report
from userlock.ndb.lastputs import LastPut, note_put
from userlock.ndb.places import Place
from userlock.ndb.policies import WritePolicy, policy_for_message
from userlock.ndb.releases import installed_release
from userlock.ndb.stamps import DELETED, Stamp, restamp, stamp_of
from userlock.ndb.transactions import forget_pending, note_pending
from userlock.ndb.writeid import mark_of
from userlock.reports import REPORTS
from userlock.settings import Reaction

AnyViolation = TypeVar("AnyViolation", bound=WriteViolation)


class FencedWrite(abc.ABC):
    """What puts and deletes have in common: the checks when their transaction commits."""

    __slots__ = (
        "_by_comparison",
        "_checked",
        "_tenures",
        "_told",
        "base_version",
        "begun_by",
        "begun_in",
        "carried",
        "future",
        "read_version",
    )

    def __init__(self, stamp: Stamp | None, tenures: tuple[Tenure, ...], now: Moment) -> None:
        self._tenures = tenures
        self._checked = now.checked
        self._by_comparison: bool | None = None
        #: The ndb context that it is begun in, and the thread.
        self.begun_in = now.context
        self.begun_by = threading.get_ident()
        #: Whether there is a mutation of it, or there is to be none. Without fencing nobody asks.
        self.carried = not now.fenced
        self._told = False
        #: Its outcome, once it is on its way.
        self.future: Any = None
        self.read_version = 0 if stamp is None or stamp.version == DELETED else stamp.version
        self.base_version = _version_to_match(stamp, now.transaction) if now.fenced else 0

    @property
    def by_comparison(self) -> bool:
        """Whether Datastore cannot be told what the write builds on. Settled when first asked."""
        if self._by_comparison is None:
            version = self.base_version
            self._by_comparison = version < 0 or (
                version > 0 and not server.honours_base_version(self.begun_in.client)
            )
        return self._by_comparison

    def begun(self, future: Any) -> None:
        """It is on its way."""
        self.future = future
        if self.begun_in.transaction is not None:
            hooks.note_begun(future, self.not_fenced)
        for tenure in self._tenures:
            note_pending(tenure, self)

    def answered(self) -> None:
        """Whoever put it is about to be told of its outcome.

        Raises:
            WriteNotFenced: it went past the hooks.
        """
        for tenure in self._tenures:
            forget_pending(tenure, self)
        if (error := self.not_fenced()) is not None:
            raise error

    def not_fenced(self) -> WriteNotFenced | None:
        """What is to be raised where ndb writes it past the hooks; None where it does not.

        A release of ndb may have all that is hooked into and not call it any more. Asked once
        the write is done, and again before its transaction commits: that must not.
        """
        stored = self.begun_in.transaction is None
        if self.carried or hooks.has_failed(self.future) or (stored and self._told):
            return None
        self._told = True
        return WriteNotFenced(**self._facts, stored=stored, release=installed_release())

    def about_to_commit(self) -> None:
        """Within a transaction: its locks must have been held until here.

        Raises:
            LeaseRanOut, LeaseWasLost, PutAfterRelease: it has not. Not transient errors, so ndb
                rolls back and does not try again.
        """
        if not self._checked:
            return
        for tenure in self._tenures:
            if tenure.held:
                self._check_lease(tenure, "its transaction was about to commit")
            else:
                report(self._violation(PutAfterRelease, "its transaction was about to commit"))

    def trying_again(self) -> None:
        """Its transaction is about to be run again: the locks around it must still be held.

        Those that were taken inside are taken again.

        Raises:
            LeaseRanOut, LeaseWasLost: one is not.
        """
        if not self._checked:
            return
        for tenure in self._tenures:
            if tenure.held:
                self._check_lease(tenure, "its transaction was about to be run again")

    def _check_lease(self, tenure: Tenure, when: str) -> None:
        if tenure.lost:
            report(self._violation(LeaseWasLost, tenure.lost))
        elif tenure.ran_out:
            held = f"{tenure.held_seconds:.3g} s after the lock was taken"
            report(self._violation(LeaseRanOut, f"{when} {held}"))

    def too_late(self) -> WriteAfterCommit:
        """Its transaction has been committed already."""
        return self._violation(WriteAfterCommit)

    @abc.abstractmethod
    def in_doubt(self) -> CommitInDoubt:
        """Nobody can tell whether its transaction was applied."""

    @property
    @abc.abstractmethod
    def _facts(self) -> dict[str, Any]:
        """What each error about this write tells of it."""

    @abc.abstractmethod
    def _violation(self, kind: type[AnyViolation], detail: str = "") -> AnyViolation:
        """A violation with the facts of this write."""


class FencedPut(FencedWrite):
    """One put from `put_async` to the commit's answer. Implements `watch.Write`."""

    __slots__ = (
        "_entity",
        "_held",
        "_key",
        "_last_puts",
        "_lock_id",
        "_put_at",
        "_stamp",
        "mark",
        "may_overwrite",
        "must_be_new",
    )

    def __init__(
        self,
        entity: Any,
        lock_id: str | None,
        stamp: Stamp | None,
        tenures: tuple[Tenure, ...],
        put_at: Place | None,
        now: Moment,
    ) -> None:
        super().__init__(stamp, tenures, now)
        self._entity = entity
        #: What it is stored under; None while Datastore is still to allocate the id.
        self._key = hooks.key_of(entity) if hooks.is_complete(hooks.key_of(entity)) else None
        self._held = now.held
        self._lock_id = lock_id
        self._stamp = stamp
        self._put_at = put_at
        self._last_puts: list[LastPut] = []
        reaction = self._reaction_to_overwriting(now)
        self.must_be_new = reaction is not Reaction.OFF
        self.may_overwrite = reaction is Reaction.WARN
        self.mark = mark_of(type(entity))

    def _reaction_to_overwriting(self, now: Moment) -> Reaction:
        """What is to happen if the entity exists already; `OFF` where nothing is wrong with that.

        It must not for a new object with a key of its own.
        """
        new = self._stamp is None or self._stamp.version == DELETED
        if not new or not now.fenced or self._key is None:
            return Reaction.OFF
        cls = type(self._entity)
        if cls._write_policy is WritePolicy.WRITE_ONCE:
            return Reaction.RAISE
        return Reaction.OFF if cls._overwrites else now.settings.blind_overwrites

    def begun(self, future: Any) -> None:
        """It is on its way."""
        if (self.must_be_new or self.by_comparison) and not future.done():
            hooks.note_in_flight(self._key, future)
        if self._key is None:
            future.add_done_callback(self._take_key)
        # Where ndb could not even make a message of it, nothing has been put.
        if not hooks.has_failed(future):
            self._note_put(future)
        super().begun(future)

    def _note_put(self, future: Any) -> None:
        transaction = self.begun_in.transaction
        where: tuple[Tenure | None, ...] = self._tenures
        if not where and transaction is not None:
            where = (None,)
        for tenure in where:
            last = note_put(self._entity, tenure, self._put_at, transaction)
            last.future = future
            self._last_puts.append(last)
        self._entity.__dict__["_userlock_put_in"] = transaction

    def _take_key(self, future: Any) -> None:
        """The id has been allocated, and the application has not changed the key again yet."""
        if not hooks.has_failed(future):
            self._key = hooks.key_of(self._entity)
            stamp_of(self._entity)  # which then learns it, too

    def landed(self, version: int) -> None:
        """The entity is stored: its object now stands for that version."""
        restamp(
            self._entity,
            self._key,
            version,
            self._put_at,
            held=self._held,
            lock_id=self._lock_id,
        )
        for last in self._last_puts:
            last.version = version
            last.future = None

    def conflicted(
        self, version: int, *, others_landed: int = 0, may_have_landed: bool = False
    ) -> StaleWriteError:
        """Somebody else wrote it first. The stale object leaves the caches."""
        error = self._error(version, others_landed, may_have_landed)
        return tell_of_stale(error, self._entity._key)

    def overwriting(self) -> None:
        """A new object overwrites an entity that nobody has looked at."""
        error = self._error(0)
        kind = type(self._entity)._get_kind()
        count = REPORTS.count(error, kind, self._put_at, None)
        LISTENERS.emit(BlindOverwrite(self._lock_id, error, count))

    def _error(
        self, version: int, others_landed: int = 0, may_have_landed: bool = False
    ) -> StaleWriteError:
        kind = EntityExistsError if self.must_be_new else StaleWriteError
        return kind(
            **self._facts,
            read_version=max(self.base_version, 0),
            found_version=version,
            read_at=None if self._stamp is None else self._stamp.place,
            others_landed=others_landed,
            may_have_landed=may_have_landed,
        )

    def in_doubt(self) -> CommitInDoubt:
        """Nobody can tell whether its transaction was applied."""
        hooks.forget_cached(self._entity._key)
        return CommitInDoubt(**self._facts, kind=type(self._entity)._get_kind())

    @property
    def _facts(self) -> dict[str, Any]:
        return {"key": self._entity._key, "lock_id": self._lock_id, "put_at": self._put_at}

    def _violation(self, kind: type[AnyViolation], detail: str = "") -> AnyViolation:
        return kind(
            **self._facts,
            kind=type(self._entity)._get_kind(),
            policy=policy_for_message(type(self._entity)),
            read_at=None if self._stamp is None else self._stamp.place,
            detail=detail,
        )


def _version_to_match(stamp: Stamp | None, transaction: bytes | None) -> int:
    """The version the server must still have; 0 where nothing is to be matched."""
    if stamp is None:
        return 0
    if transaction is not None and transaction == stamp.transaction:
        return 0  # the transaction itself answers for what was read in it
    return 0 if stamp.version == DELETED else stamp.version


_Stale = TypeVar("_Stale", bound=StaleWriteError)


def tell_of_stale(error: _Stale, ndb_key: Any) -> _Stale:
    """The entity leaves the caches, and listeners hear of it. Gives the error back."""
    hooks.forget_cached(ndb_key)
    LISTENERS.emit(StaleWrite(error.lock_id, error))
    return error
