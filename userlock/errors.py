"""Every error the library raises, under one base.

    UserLockError
    ├── ConfigurationError              the library was set up or called in a way that cannot work
    │   ├── NoService                   no lock service was configured
    │   ├── NoScope                     acquire_lock() outside a scope: nothing would release it
    │   └── LockIdError                 a model cannot say which lock guards an entity
    ├── LockError                       something about one lock; carries its lock_id
    │   ├── LockTimeout                 waited long enough; names the holder
    │   ├── LockServiceUnavailable      the lease store does not answer, and the policy is to fail
    │   ├── DeadlockDetected            the wait would never have ended: a circle of waiters
    │   └── LockNotHeld                 release_lock() of a lock that this scope does not hold
    ├── WriteViolation                  a write that slipped past the lock: a mistake in the code
    │   ├── ReadWithoutLock             read before the lock was taken, put under it
    │   ├── PutWithoutLock              no lock at all
    │   ├── PutAfterRelease             read under the lock, put after it was released
    │   ├── ReadUnderEarlierTenure      the lock was released and taken again in between
    │   ├── LeaseRanOut                 the lease was over before the put
    │   ├── LeaseWasLost                the store or an operator had ended the lease before the put
    │   ├── CreatedWithoutLock          a new entity was put without the lock
    │   ├── DeletedWithoutLock          an entity was deleted without the lock
    │   ├── InternalStomp               an older object of an entity put after a newer one
    │   ├── WriteAfterCommit            a write in an on-commit callback, which ndb would drop
    │   └── PartialEntityPut            an entity of a projection query was put
    ├── StaleWriteError                 the write was fenced: somebody else wrote the entity first
    │   └── EntityExistsError           a new entity was put where there is one already
    └── EntityNotFound                  the entity was deleted before it could be locked

A `WriteViolation` is a bug in the calling code and is raised before that entity
is sent. A `StaleWriteError` is a lost race that the lock did not prevent
(its lease ran out, memcached lost it); the entity is unchanged in Datastore
and the request can be tried again from its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from userlock.lock.lease import Holder


class UserLockError(Exception):
    """Base of every error in this library. Can be pickled, as process pools do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self._portable())

    def _portable(self) -> dict[str, Any]:
        """The attributes; a place in the code, which cannot travel, as text."""
        return {
            name: str(value) if name in ("read_at", "put_at") and value is not None else value
            for name, value in self.__dict__.items()
        }


def _rebuild(
    kind: type[UserLockError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> UserLockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


# --- set-up ---------------------------------------------------------------------------------


class ConfigurationError(UserLockError):
    """The library was set up, or called, in a way that cannot work."""


class NoService(ConfigurationError):
    """No lock service is configured."""


class NoScope(ConfigurationError):
    """`acquire_lock` was called where nothing would ever release the lock."""


class LockIdError(ConfigurationError):
    """A model cannot say which lock guards an entity."""


# --- the lock -------------------------------------------------------------------------------


class LockError(UserLockError):
    """Something about one lock.

    Attributes:
        lock_id: the lock concerned.
    """

    def __init__(self, message: str, *, lock_id: str) -> None:
        super().__init__(message)
        self.lock_id = lock_id


class LockTimeout(LockError):
    """The lock was not free within the wait.

    Attributes:
        lock_id: the lock concerned.
        waited_seconds: how long this caller waited.
        holder: who held it at the last look, or None if that is not known.
    """

    def __init__(self, *, lock_id: str, waited_seconds: float, holder: Holder | None) -> None:
        by = f"it is held by {holder.describe()}" if holder else "its holder is not known"
        super().__init__(
            f"lock {lock_id!r} was not free after {waited_seconds:.3g} s: {by}", lock_id=lock_id
        )
        self.waited_seconds = waited_seconds
        self.holder = holder


class LockServiceUnavailable(LockError):
    """The lease store did not answer and the outage policy is to fail.

    Attributes:
        lock_id: the lock concerned.
        reason: what the store's client said.
    """

    def __init__(self, *, lock_id: str, reason: str) -> None:
        super().__init__(
            f"lock {lock_id!r}: the lease store is unavailable ({reason})",
            lock_id=lock_id,
        )
        self.reason = reason


class DeadlockDetected(LockError):
    """Waiting for the lock would close a circle: each waits for a lock that the next one holds.

    Raised in the one that began to wait last; the others go on. Take several
    locks with `global_locks([…])`, always in the same order, and this cannot
    happen.

    Attributes:
        lock_id: the lock that was waited for.
        circle: each lock in the circle with who holds it, in words, from `lock_id` on.
    """

    def __init__(self, *, lock_id: str, circle: tuple[tuple[str, str], ...]) -> None:
        links = ", ".join(f"{each!r} is held by {who}" for each, who in circle)
        super().__init__(
            f"waiting for lock {lock_id!r} would never end: {links}, which waits for the next "
            f"one in turn. Take the locks together with userlock.global_locks([...]), or always "
            f"in the same order",
            lock_id=lock_id,
        )
        self.circle = circle


class LockNotHeld(LockError):
    """The lock to release, extend or yield is not held (any more)."""


# --- writes ---------------------------------------------------------------------------------


class WriteViolation(UserLockError):
    """A write that slipped past the lock. The entity was not sent to Datastore.

    Other entities of one `put_multi` that come before it may have been.

    Attributes:
        key: the entity's `ndb.Key` (None for a new entity whose id is not yet allocated).
        lock_id: the lock that guards the entity (None when a bare key does not tell).
        read_at: where the entity was read (None for new entities and deletes).
        put_at: where it was about to be put or deleted.
    """

    #: What is wrong, as a sentence part; each class has its own.
    problem = "was put in a way its lock does not allow"
    #: What to do about it.
    remedy = "take the lock before the read"

    def __init__(
        self,
        *,
        key: Any,
        kind: str,
        lock_id: str | None,
        read_at: object | None,
        put_at: object | None,
        detail: str = "",
        deleting: bool = False,
    ) -> None:
        what = repr(key) if key is not None else f"a new {kind}"
        lines = [f"{what} {self.problem}{f' ({detail})' if detail else ''}."]
        lines.append(f"  lock id: {lock_id!r}" if lock_id is not None else "  lock id: not known")
        if read_at is not None:
            lines.append(f"  read at: {read_at}")
        lines.append(f"  {'deleted at' if deleting else 'put at'}: {put_at or 'not known'}")
        lines.append(f"  To mend it: {self.remedy}.")
        super().__init__("\n".join(lines))
        self.key = key
        self.kind = kind
        self.lock_id = lock_id
        self.read_at = read_at
        self.put_at = put_at


class ReadWithoutLock(WriteViolation):
    """The entity was read before the lock was taken, then put under it."""

    problem = "was read without its lock and then put under it, so the read may be out of date"
    remedy = (
        "read it again under the lock, take the lock before the first read, or use "
        "fetch_under_user_write_lock(entity)"
    )


class PutWithoutLock(WriteViolation):
    """The entity was read and put with no lock at all."""

    problem = "was read and put without its lock"
    remedy = "wrap the read and the put in `with userlock.global_lock(lock_id):`"


class PutAfterRelease(WriteViolation):
    """The entity was read under the lock and put after it was released."""

    problem = "was read under its lock but put after the lock was released"
    remedy = "move the put inside the `with` block"


class ReadUnderEarlierTenure(WriteViolation):
    """The lock was released and taken again between the read and the put."""

    problem = (
        "was read under an earlier tenure of its lock: the lock was released and taken again "
        "since, and others may have written in between"
    )
    remedy = "read it again after taking the lock again, or hold the lock from read to put"


class LeaseRanOut(WriteViolation):
    """The lease was over before the put."""

    problem = "was written after the lease on its lock ran out, so another request may hold it"
    remedy = (
        "do less work under the lock, or ask for a longer lease: "
        "global_lock(lock_id, lock_timeout=seconds)"
    )


class LeaseWasLost(WriteViolation):
    """The lease had been found lost before the put: evicted, forgotten, taken or broken."""

    problem = "was written after its lock had been lost, so another request may hold it"
    remedy = "run the request again from its read; the detail says what became of the lease"


class CreatedWithoutLock(WriteViolation):
    """A new entity was put without the lock."""

    problem = "is new and was put without its lock"
    remedy = (
        "wrap the creation in `with userlock.global_lock(lock_id):`, from the look-up that found "
        "it missing to the put"
    )


class DeletedWithoutLock(WriteViolation):
    """An entity was deleted without the lock."""

    problem = "was deleted without its lock"
    remedy = "wrap the delete in `with userlock.global_lock(lock_id):`"


class InternalStomp(WriteViolation):
    """Two objects of one entity: the older one was put after the newer one."""

    problem = (
        "was put from an older object after another object of the same entity had been put, "
        "which would undo that write"
    )
    remedy = "read the entity once and pass that object on, or read it again before this put"


class WriteAfterCommit(WriteViolation):
    """A write in a transaction that has been committed already: ndb would drop it in silence.

    Raised whatever the enforcement.
    """

    problem = "was written in a transaction that was committed already, so it would be lost"
    remedy = "write it after ndb.transaction() has returned, not in a call_on_commit() callback"


class PartialEntityPut(WriteViolation):
    """An entity of a projection query was put: the properties it lacks would be wiped."""

    problem = "comes from a projection query, so putting it would wipe what was not read"
    remedy = "get the whole entity by its key, under the lock, and put that"


class StaleWriteError(UserLockError):
    """The write was refused at the Datastore commit: the entity had changed since it was read.

    Nothing was overwritten. Start again from the read.

    Limit: when the reply to a put is lost, ndb sends it again, and meets its
    own write; this error is raised then although the write has landed. So it
    may be reported refused and yet be there, but never the other way round.

    Attributes:
        key: the entity's `ndb.Key`.
        read_version: the version the entity had when it was read.
        found_version: the version the server holds now (0 if it did not say).
        read_at: where the entity was read.
        put_at: where it was put.
        lock_id: the lock that should have prevented this.
    """

    _problem = "was written by somebody else since it was read"
    _remedy = "run the request again from its read"

    def __init__(
        self,
        *,
        key: Any,
        lock_id: str | None,
        read_version: int,
        found_version: int,
        read_at: object | None,
        put_at: object | None,
        deleting: bool = False,
    ) -> None:
        lines = [
            f"{key!r} {self._problem}, so this write was refused and nothing was overwritten.",
            f"  lock id: {lock_id!r}",
        ]
        if read_version:
            lines.append(f"  read at: {read_at or 'not known'} (version {read_version})")
        found = f" (the server has version {found_version})" if found_version else ""
        lines.append(f"  {'deleted at' if deleting else 'put at'}: {put_at or 'not known'}{found}")
        lines.append(f"  To mend it: {self._remedy}.")
        super().__init__("\n".join(lines))
        self.key = key
        self.lock_id = lock_id
        self.read_version = read_version
        self.found_version = found_version
        self.read_at = read_at
        self.put_at = put_at


class EntityExistsError(StaleWriteError):
    """A new entity was put under a key that exists already; the existing one is unchanged.

    Either two requests created it at once and the other one won, or the code
    makes a new object where it should read the one that is there.
    """

    _problem = "exists already, and a new object was put under its key"
    _remedy = (
        "read it first and create it only when it is missing, under the lock; a model whose "
        "entities are meant to be overwritten unread says `_overwrites = True`"
    )


class EntityNotFound(UserLockError, LookupError):
    """The entity was deleted before `fetch_under_user_write_lock` could lock it.

    Attributes:
        key: the key that was looked up.
    """

    def __init__(self, key: Any) -> None:
        super().__init__(f"{key!r} no longer exists in Datastore")
        self.key = key
