"""Fenced deletes: only the version that was read is deleted. See `fencing`."""

from __future__ import annotations

from typing import Any

from userlock.errors import CommitInDoubt, StaleWriteError
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.enforcement import Moment
from userlock.ndb.fencing import AnyViolation, FencedWrite, tell_of_stale
from userlock.ndb.lastputs import last_puts, note_delete
from userlock.ndb.places import Place
from userlock.ndb.policies import policy_for_message
from userlock.ndb.stamps import DELETED, Stamp, restamp, stamp_of


class FencedDelete(FencedWrite):
    """One delete from `delete_async` to the commit's answer. Implements `watch.Write`.

    It carries the version of the context cache's object: under its lock, if
    that was read under the same tenure, else in any case. A delete of what the
    cache does not have has nothing to match.
    """

    __slots__ = ("_cached", "_deleted_at", "_key", "_landed", "_lock_id", "_read_at")

    must_be_new = may_overwrite = False
    mark = None

    def __init__(
        self,
        ndb_key: Any,
        lock_id: str | None,
        cached: Any,
        tenure: Tenure | None,
        deleted_at: Place | None,
        now: Moment,
    ) -> None:
        stamp = _stamp_under(tenure, cached, now.transaction)
        super().__init__(stamp, () if tenure is None else (tenure,), now)
        self._cached = cached
        self._key = ndb_key
        self._landed = False
        self._lock_id = lock_id
        self._deleted_at = deleted_at
        self._read_at = None if stamp is None else stamp.place
        if tenure is not None:
            last = last_puts(tenure).pop(ndb_key, None)
            if last is not None and last.version and self.base_version:
                self.base_version = last.version  # put by another object than the cached one

    def begun(self, future: Any) -> None:
        """It is on its way."""
        note_delete(self._key)
        if self.begun_in.transaction is not None:
            hooks.when_transaction_ends(self._transaction_is_over)
        super().begun(future)

    def _transaction_is_over(self) -> None:
        if self._landed:
            return
        self._undo_in_caches()
        if not self.future.done():  # ndb is still to take it as deleted
            self.future.add_done_callback(lambda future: self._undo_in_caches())

    def _undo_in_caches(self) -> None:
        stamp = None if self._cached is None else stamp_of(self._cached)
        outside = stamp is not None and stamp.transaction != self.begun_in.transaction
        before = self._cached if outside else None
        hooks.undo_cached_delete(self.begun_in, self._key, before)

    def landed(self, version: int) -> None:
        """The entity is gone; an object of it that is put after this creates it anew."""
        self._landed = True
        stamp = None if self._cached is None else stamp_of(self._cached)
        if stamp is not None:
            restamp(self._cached, stamp.key, DELETED, held=stamp.held)

    def overwriting(self) -> None:
        """Never: nothing is created."""

    def conflicted(
        self, version: int, *, others_landed: int = 0, may_have_landed: bool = False
    ) -> StaleWriteError:
        """Somebody else wrote it first."""
        error = StaleWriteError(
            key=self._key,
            lock_id=self._lock_id,
            read_version=max(self.base_version, 0),
            found_version=version,
            read_at=self._read_at,
            put_at=self._deleted_at,
            deleting=True,
            others_landed=others_landed,
            may_have_landed=may_have_landed,
        )
        return tell_of_stale(error, self._key)

    def in_doubt(self) -> CommitInDoubt:
        """Nobody can tell whether its transaction was applied."""
        self._cached = None  # so that the caches do not say that it is there, either
        return CommitInDoubt(
            key=self._key,
            kind=self._key.kind(),
            lock_id=self._lock_id,
            put_at=self._deleted_at,
            deleting=True,
        )

    def _violation(self, kind: type[AnyViolation], detail: str = "") -> AnyViolation:
        return kind(
            key=self._key,
            kind=self._key.kind(),
            lock_id=self._lock_id,
            policy=policy_for_message(hooks.model_of(self._key.kind())),
            read_at=self._read_at,
            put_at=self._deleted_at,
            detail=detail,
            deleting=True,
        )


def _stamp_under(tenure: Tenure | None, cached: Any, transaction: bytes | None) -> Stamp | None:
    """What is known of a cached object, if it was read under this tenure, or in this transaction.

    Who has taken the lock since it was read did not rely on it when he decided on the delete.
    Without a lock it is all that there is to rely on.
    """
    stamp = None if cached is None else stamp_of(cached)
    if stamp is None or tenure is None or stamp.held.get(tenure.lock_id) is tenure:
        return stamp
    return stamp if transaction is not None and stamp.transaction == transaction else None
