"""The public API: every name that `userlock` has, with all that stands behind it."""

from __future__ import annotations

import userlock.stores  # noqa: F401  (so that `from_url` knows them)
from userlock._version import __version__
from userlock.configuration import configure
from userlock.errors import (
    AbstractWritten,
    BatchOnlyWritten,
    ConfigurationError,
    CreatedWithoutLock,
    DeadlockDetected,
    DeletedWithoutLock,
    EntityExistsError,
    EntityNotFound,
    InternalStomp,
    LeaseRanOut,
    LeaseWasLost,
    LockError,
    LockIdChanged,
    LockIdError,
    LockNotHeld,
    LockServiceUnavailable,
    LockTimeout,
    NeverWrittenWritten,
    NoScope,
    NoService,
    NotInTransaction,
    PartialEntityPut,
    PutAfterRelease,
    PutWithoutLock,
    ReadUnderEarlierTenure,
    ReadWithoutLock,
    StaleWriteError,
    StructuredOnlyWritten,
    UserLockError,
    WriteAfterCommit,
    WriteOnceRewritten,
    WriteViolation,
    WrongTransaction,
)
from userlock.lock.lease import Holder, Lease, Priority
from userlock.lock.policy import LockPolicy, OutagePolicy, Polling, PriorityPolicy
from userlock.lock.record import Waiter
from userlock.lock.scope import LockScope, current_scope, scope
from userlock.lock.service import LockService
from userlock.lock.store import LeaseStore, Stored, StoreUnavailable
from userlock.lock.tenure import Tenure
from userlock.lock.verbs import (
    acquire_lock,
    break_lock,
    global_lock,
    global_locks,
    holder,
    release_lock,
    waiters,
    with_extension,
)
from userlock.ndb.enforcement import suppress
from userlock.ndb.lockids import key_id, lock_id_of, root_id
from userlock.ndb.model import Model, UserModel, fetch_under_user_write_lock
from userlock.ndb.policies import WritePolicy
from userlock.reports import SiteReport, violations
from userlock.settings import Enforcement, Settings

__all__ = [
    "AbstractWritten",
    "BatchOnlyWritten",
    "ConfigurationError",
    "CreatedWithoutLock",
    "DeadlockDetected",
    "DeletedWithoutLock",
    "Enforcement",
    "EntityExistsError",
    "EntityNotFound",
    "Holder",
    "InternalStomp",
    "Lease",
    "LeaseRanOut",
    "LeaseStore",
    "LeaseWasLost",
    "LockError",
    "LockIdChanged",
    "LockIdError",
    "LockNotHeld",
    "LockPolicy",
    "LockScope",
    "LockService",
    "LockServiceUnavailable",
    "LockTimeout",
    "Model",
    "NeverWrittenWritten",
    "NoScope",
    "NoService",
    "NotInTransaction",
    "OutagePolicy",
    "PartialEntityPut",
    "Polling",
    "Priority",
    "PriorityPolicy",
    "PutAfterRelease",
    "PutWithoutLock",
    "ReadUnderEarlierTenure",
    "ReadWithoutLock",
    "Settings",
    "SiteReport",
    "StaleWriteError",
    "StoreUnavailable",
    "Stored",
    "StructuredOnlyWritten",
    "Tenure",
    "UserLockError",
    "UserModel",
    "Waiter",
    "WriteAfterCommit",
    "WriteOnceRewritten",
    "WritePolicy",
    "WriteViolation",
    "WrongTransaction",
    "__version__",
    "acquire_lock",
    "break_lock",
    "configure",
    "current_scope",
    "fetch_under_user_write_lock",
    "global_lock",
    "global_locks",
    "holder",
    "key_id",
    "lock_id_of",
    "release_lock",
    "root_id",
    "scope",
    "suppress",
    "violations",
    "waiters",
    "with_extension",
]
