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
    │   ├── LockOutOfOrder              against the canonical order (where that is raised)
    │   └── LockNotHeld                 release_lock() of a lock that this scope does not hold
    ├── WriteViolation                  a write that its model's policy does not allow: a mistake
    │   ├── ReadWithoutLock             read before the lock was taken, put under it
    │   ├── PutWithoutLock              no lock at all
    │   ├── PutAfterRelease             read under the lock, put after it was released
    │   ├── ReadUnderEarlierTenure      the lock was released and taken again in between
    │   ├── LeaseRanOut                 the lease was over before the put
    │   ├── LeaseWasLost                the store or an operator had ended the lease before the put
    │   ├── CreatedWithoutLock          a new entity was put without the lock
    │   ├── DeletedWithoutLock          an entity was deleted without the lock
    │   ├── LockIdChanged               its lock is another one than when it was read
    │   ├── LockIdMissing               nothing says which; a LockIdError too
    │   ├── InternalStomp               an older object of an entity put after a newer one
    │   ├── WriteAfterCommit            a write in an on-commit callback, which ndb would drop
    │   ├── PartialEntityPut            an entity of a projection query was put
    │   ├── NotInTransaction            policy in a transaction: written outside of any
    │   ├── WrongTransaction            policy in a transaction: read in another one, or in none
    │   ├── WriteOnceRewritten          policy written once: put again
    │   ├── NeverWrittenWritten         policy never written: put or deleted
    │   ├── BatchOnlyWritten            policy batch only: written by a request
    │   ├── AbstractWritten             policy abstract: has no entities
    │   └── StructuredOnlyWritten       policy structured only: has no entities
    ├── StaleWriteError                 the write was fenced: somebody else wrote the entity first
    │   └── EntityExistsError           a new entity was put where there is one already
    ├── CommitInDoubt                   a commit was applied, or not: its reply was lost
    ├── WriteNotFenced                  a write that could not be fenced, so it was not sent
    ├── StaleObjectUsed                 an object that is out of date (where that is raised)
    └── EntityNotFound                  the entity was deleted before it could be locked

A `WriteViolation` is a bug in the calling code and is raised before that
entity is sent; docs/models.md says what to do about each. A `StaleWriteError`
is a lost race that the lock did not prevent (its lease ran out, memcached lost
it); the entity is unchanged in Datastore and the request can be tried again
from its beginning.
"""

from __future__ import annotations

from userlock.errors.base import (
    ConfigurationError,
    LockIdError,
    NoScope,
    NoService,
    UserLockError,
)
from userlock.errors.locks import (
    DeadlockDetected,
    LockError,
    LockNotHeld,
    LockOutOfOrder,
    LockServiceUnavailable,
    LockTimeout,
)
from userlock.errors.refusals import (
    CommitInDoubt,
    EntityExistsError,
    EntityNotFound,
    StaleObjectUsed,
    StaleWriteError,
    WriteNotFenced,
)
from userlock.errors.violations import (
    AbstractWritten,
    BatchOnlyWritten,
    CreatedWithoutLock,
    DeletedWithoutLock,
    InternalStomp,
    LeaseRanOut,
    LeaseWasLost,
    LockIdChanged,
    LockIdMissing,
    NeverWrittenWritten,
    NotInTransaction,
    PartialEntityPut,
    PutAfterRelease,
    PutWithoutLock,
    ReadUnderEarlierTenure,
    ReadWithoutLock,
    StructuredOnlyWritten,
    WriteAfterCommit,
    WriteOnceRewritten,
    WriteViolation,
    WrongTransaction,
)

__all__ = [
    "AbstractWritten",
    "BatchOnlyWritten",
    "CommitInDoubt",
    "ConfigurationError",
    "CreatedWithoutLock",
    "DeadlockDetected",
    "DeletedWithoutLock",
    "EntityExistsError",
    "EntityNotFound",
    "InternalStomp",
    "LeaseRanOut",
    "LeaseWasLost",
    "LockError",
    "LockIdChanged",
    "LockIdError",
    "LockIdMissing",
    "LockNotHeld",
    "LockOutOfOrder",
    "LockServiceUnavailable",
    "LockTimeout",
    "NeverWrittenWritten",
    "NoScope",
    "NoService",
    "NotInTransaction",
    "PartialEntityPut",
    "PutAfterRelease",
    "PutWithoutLock",
    "ReadUnderEarlierTenure",
    "ReadWithoutLock",
    "StaleObjectUsed",
    "StaleWriteError",
    "StructuredOnlyWritten",
    "UserLockError",
    "WriteAfterCommit",
    "WriteNotFenced",
    "WriteOnceRewritten",
    "WriteViolation",
    "WrongTransaction",
]

# Shown in tracebacks by the name under which they are imported.
for _name in __all__:
    globals()[_name].__module__ = __name__
