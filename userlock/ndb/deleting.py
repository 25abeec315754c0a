"""Fenced deletes: only the version that was read is deleted. See `fencing`."""

from __future__ import annotations

from typing import Any, NamedTuple

from userlock.errors import CommitInDoubt, StaleWriteError
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.enforcement import Moment
from userlock.ndb.fencing import AnyViolation, FencedWrite, tell_of_stale
from userlock.ndb.lastputs import last_puts, note_delete
from userlock.ndb.places import Place
from userlock.ndb.policies import policy_for_message
from userlock.ndb.stamps import DELETED, Stamp, restamp, stamp_of


class Begun(NamedTuple):
    """What is kept of a delete in a transaction, should ndb run that again.

    ndb passes on to the cache around it that the entity is gone, or is what the transaction has
    put after the delete, and leaves it at that when the attempt is rolled back.

    Attributes:
        cached: the object that the cache had before.
        cached_version: what it stood for then.
        base_version: the version that was to be deleted. In both 0 for any.
    """

    cached: Any
    cached_version: int
    base_version: int


class FencedDelete(FencedWrite):
    """One delete from `delete_async` to the commit's answer. Implements `watch.Write`.

    It carries the version of the context cache's object: under its lock, if
    that was read under the same tenure, else in any case. A delete of what the
    cache does not have has nothing to match.
    """

    __slots__ = ("_cached", "_cached_version", "_deleted_at", "_key", "_lock_id", "_read_at")

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
        earlier: Begun | None = None,
    ) -> None:
        stamp = _stamp_under(tenure, cached, now.transaction)
        super().__init__(stamp, () if tenure is None else (tenure,), now)
        self._cached = cached
        self._key = ndb_key
        self._lock_id = lock_id
        self._deleted_at = deleted_at
        self._read_at = None if stamp is None else stamp.place
        self._cached_version = self.base_version
        if earlier is not None and (
            # The object may have been given another key since.
            stamp_of(cached) is None or earlier.cached_version == self._cached_version
        ):
            self.base_version = earlier.base_version
        if tenure is not None:
            last = last_puts(tenure).pop(ndb_key, None)
            if last is not None and last.version and self.base_version:
                self.base_version = last.version  # put by another object than the cached one

    def begun(self, future: Any) -> None:
        """It is on its way."""
        note_delete(self._key)
        if self.begun_in.transaction is not None and self._cached is not None:
            begun = Begun(self._cached, self._cached_version, self.base_version)
            hooks.deletes_in_transactions()[self._key] = begun
        super().begun(future)

    def landed(self, version: int) -> None:
        """The entity is gone; an object of it that is put after this creates it anew."""
        hooks.deletes_in_transactions().pop(self._key, None)
        stamp = None if self._cached is None else stamp_of(self._cached)
        if stamp is not None:
            restamp(self._cached, stamp.key, DELETED, held=stamp.held)

    def overwriting(self) -> None:
        """Never: nothing is created."""

    def conflicted(
        self, version: int, *, others_landed: int = 0, may_have_landed: bool = False
    ) -> StaleWriteError:
        """Somebody else wrote it first."""
        hooks.deletes_in_transactions().pop(self._key, None)
        error = StaleWriteError(
            **self._facts,
            read_version=max(self.base_version, 0),
            found_version=version,
            read_at=self._read_at,
            others_landed=others_landed,
            may_have_landed=may_have_landed,
        )
        return tell_of_stale(error, self._key)

    def in_doubt(self) -> CommitInDoubt:
        """Nobody can tell whether its transaction was applied."""
        return CommitInDoubt(**self._facts, kind=self._key.kind())

    @property
    def _facts(self) -> dict[str, Any]:
        return {
            "key": self._key,
            "lock_id": self._lock_id,
            "put_at": self._deleted_at,
            "deleting": True,
        }

    def _violation(self, kind: type[AnyViolation], detail: str = "") -> AnyViolation:
        return kind(
            **self._facts,
            kind=self._key.kind(),
            policy=policy_for_message(hooks.model_of(self._key.kind())),
            read_at=self._read_at,
            detail=detail,
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
