"""One lease lock per user for Google Cloud Datastore apps.

    with userlock.global_lock(user_id, wait_timeout=5):
        user = User.get_by_id(user_id)
        user.points += 5
        user.put()

Layers, each importing only from those before it:

    errors, clock, settings ← events ← lock ← stores, ndb, contrib, testing, cli
"""

from __future__ import annotations

from userlock import stores as stores
from userlock._version import __version__
from userlock.configuration import configure
from userlock.errors import (
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
    LockIdError,
    LockNotHeld,
    LockServiceUnavailable,
    LockTimeout,
    NoScope,
    NoService,
    PartialEntityPut,
    PutAfterRelease,
    PutWithoutLock,
    ReadUnderEarlierTenure,
    ReadWithoutLock,
    StaleWriteError,
    UserLockError,
    WriteAfterCommit,
    WriteViolation,
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
from userlock.ndb.model import (
    UserModel,
    fetch_under_user_write_lock,
    key_id,
    lock_id_of,
    root_id,
)
from userlock.ndb.provenance import suppress
from userlock.settings import Enforcement, Settings

__all__ = [
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
    "LockIdError",
    "LockNotHeld",
    "LockPolicy",
    "LockScope",
    "LockService",
    "LockServiceUnavailable",
    "LockTimeout",
    "NoScope",
    "NoService",
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
    "StaleWriteError",
    "StoreUnavailable",
    "Stored",
    "Tenure",
    "UserLockError",
    "UserModel",
    "Waiter",
    "WriteAfterCommit",
    "WriteViolation",
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
    "waiters",
    "with_extension",
]
