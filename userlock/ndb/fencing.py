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

from typing import Any

from userlock.errors import EntityExistsError, LeaseRanOut, StaleWriteError
from userlock.events import LISTENERS, StaleWrite
from userlock.lock.scope import current_scope
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.places import Place
from userlock.ndb.provenance import Stamp, current_settings, report
from userlock.settings import Enforcement


class FencedWrite:
    """One put from `put_async` to the commit's answer. Implements `watch.Write`."""

    __slots__ = (
        "_entity",
        "_lock_id",
        "_put_at",
        "_stamp",
        "_tenure",
        "base_version",
        "must_be_new",
    )

    def __init__(
        self,
        entity: Any,
        lock_id: str | None,
        stamp: Stamp | None,
        tenure: Tenure | None,
        put_at: Place | None,
    ) -> None:
        self._entity = entity
        self._lock_id = lock_id
        self._stamp = stamp
        self._tenure = tenure
        self._put_at = put_at
        self.base_version = self._version_to_match()
        self.must_be_new = self._is_creation()

    def _version_to_match(self) -> int:
        """The version the server must still have; 0 where nothing is to be matched."""
        stamp = self._stamp
        if stamp is None or not current_settings().fencing:
            return 0
        transaction = hooks.current_transaction()
        if transaction is not None and transaction == stamp.transaction:
            return 0  # the transaction itself answers for what was read in it
        return stamp.version

    def _is_creation(self) -> bool:
        """Whether the entity must not exist yet.

        Not in transactions, which answer for what was looked for in them; and
        not where Datastore allocates the id, or the model allows to overwrite.
        """
        key = self._entity._key
        return (
            self._stamp is None
            and key is not None
            and key.id() is not None
            and hooks.current_transaction() is None
            and not type(self._entity)._overwrites
            and current_settings().fencing
        )

    def landed(self, version: int) -> None:
        """The entity is stored: its object now stands for that version."""
        scope = current_scope()
        held = {} if scope is None else scope.held
        if self._tenure is not None and self._tenure.lock_id not in held:
            held = {**held, self._tenure.lock_id: self._tenure}
        self._entity._userlock_stamp = Stamp(held, version, None, self._put_at)

    def conflicted(self, version: int) -> StaleWriteError:
        """Somebody else wrote it first. The stale object leaves the caches."""
        stamp = self._stamp
        kind = EntityExistsError if self.must_be_new else StaleWriteError
        error = kind(
            key=self._entity._key,
            lock_id=self._lock_id,
            read_version=self.base_version,
            found_version=version,
            read_at=None if stamp is None else stamp.place,
            put_at=self._put_at,
        )
        hooks.forget_cached(self._entity._key)
        LISTENERS.emit(StaleWrite(self._lock_id, error))
        return error

    def about_to_commit(self) -> None:
        """Within a transaction: the lease must have lasted until here.

        Raises:
            LeaseRanOut: it has not. Not a transient error, so ndb rolls back and does not
                try again.
        """
        tenure = self._tenure
        if (
            tenure is None
            or not tenure.ran_out
            or current_settings().enforcement is Enforcement.OFF
        ):
            return
        report(
            LeaseRanOut(
                key=self._entity._key,
                kind=type(self._entity)._get_kind(),
                lock_id=self._lock_id,
                read_at=None if self._stamp is None else self._stamp.place,
                put_at=self._put_at,
                detail=f"before its transaction committed, {tenure.held_seconds:.3g} s after "
                f"the lock was taken",
            )
        )
