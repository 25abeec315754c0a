"""Writes that their model's policy does not allow: mistakes in the calling code."""

from __future__ import annotations

from typing import Any

from userlock.errors.base import LockIdError, UserLockError


class WriteViolation(UserLockError):
    """A write that its model's policy does not allow. The entity was not sent to Datastore.

    Other entities of one `put_multi` that come before it may have been.

    Attributes:
        key: the entity's `ndb.Key` (None for a new entity whose id is not yet allocated).
        kind: the entity's kind.
        lock_id: the lock that guards the entity (None when a bare key does not tell, and for
            models of another policy than the user's lock).
        policy: that other policy, in words; empty under the user's lock.
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
        policy: str = "",
        read_at: object | None,
        put_at: object | None,
        detail: str = "",
        deleting: bool = False,
    ) -> None:
        what = repr(key) if key is not None else f"a new {kind}"
        lines = [f"{what} {self.problem}{f' ({detail})' if detail else ''}."]
        if policy:
            lines.append(f"  write policy: {policy}")
        else:
            lines.append(f"  lock id: {'not known' if lock_id is None else repr(lock_id)}")
        if read_at is not None:
            lines.append(f"  read at: {read_at}")
        lines.append(f"  {'deleted at' if deleting else 'put at'}: {put_at or 'not known'}")
        lines.append(f"  To mend it: {self.remedy}.")
        super().__init__("\n".join(lines))
        self.key = key
        self.kind = kind
        self.lock_id = lock_id
        self.policy = policy
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
    """The entity was read and put with no lock at all, or put where its lock is not held."""

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
    """A write in a transaction that is over already: ndb would drop it in silence.

    Raised whatever the enforcement.
    """

    problem = "was written in a transaction that was over already, so it would be lost"
    remedy = "write it after ndb.transaction() has returned, not in a call_on_commit() callback"


class PartialEntityPut(WriteViolation):
    """An entity of a projection query was put: the properties it lacks would be wiped."""

    problem = "comes from a projection query, so putting it would wipe what was not read"
    remedy = "get the whole entity by its key, under the lock, and put that"


class LockIdChanged(WriteViolation):
    """The entity was read as one user's, and put as another's, without both users' locks."""

    problem = "belongs to another user than when it was read, and both their locks are needed"
    remedy = (
        "read it and put it under `with userlock.global_locks([old_lock_id, new_lock_id]):`; or "
        "if it was not meant to move, leave alone what names its lock"
    )


class LockIdMissing(WriteViolation, LockIdError):
    """An entity that does not say which lock guards it was put or deleted.

    Attributes:
        reason: what it lacks, in words; empty if that is not known.
    """

    problem = "does not say which lock guards it"
    remedy = "see that what names its lock is set before it is put, or take that from elsewhere"

    def __init__(self, *, detail: str = "", **facts: Any) -> None:
        super().__init__(detail=detail, **facts)
        self.reason = detail


class NotInTransaction(WriteViolation):
    """An entity that is written in transactions only was put or deleted outside of any."""

    problem = "was written outside of a transaction"
    remedy = "read and write it in one function under `@ndb.transactional()`"


class WrongTransaction(WriteViolation):
    """An entity that is written in transactions only was not read in the one it is put in."""

    problem = "was not read in the transaction that it is put in, which therefore protects nothing"
    remedy = "get it again inside the transaction, and change that object"


class WriteOnceRewritten(WriteViolation):
    """An entity that is written once was put again."""

    problem = "is written once, and was put again"
    remedy = "make a new entity; or give the model another policy if its entities do change"


class NeverWrittenWritten(WriteViolation):
    """An entity that is never written was put or deleted."""

    problem = "is never written here"
    remedy = "leave it alone; or give the model the policy by which it is written"


class BatchOnlyWritten(WriteViolation):
    """An entity that is written by batch work only was put or deleted by something else."""

    problem = "is written by batch work only"
    remedy = (
        "write it in a task or cron job; in a script, say `with userlock.scope(priority='batch'):`"
    )


class AbstractWritten(WriteViolation):
    """An entity of an abstract class was put or deleted."""

    problem = "is of an abstract class, which has no entities"
    remedy = "put an entity of a subclass; or give the class a policy if it does have entities"


class StructuredOnlyWritten(WriteViolation):
    """An entity of a class that is for structured properties only was put or deleted."""

    problem = "is of a class that is for values of structured properties, and has no entities"
    remedy = "put the entity that it is part of; or give the class a policy if it has entities"
