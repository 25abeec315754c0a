"""The public API is what `__all__` says, and changes on purpose only."""

from __future__ import annotations

import types

import userlock

PUBLIC = {
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
}


def test_the_public_names_are_pinned() -> None:
    assert sorted(userlock.__all__) == sorted(PUBLIC)


def test_nothing_else_looks_public() -> None:
    others = {
        name
        for name, value in vars(userlock).items()
        if not name.startswith("_") and name not in PUBLIC
        if not isinstance(value, types.ModuleType)
    }
    assert others == {"annotations"}


def test_each_has_a_docstring() -> None:
    undocumented = [
        name
        for name in PUBLIC
        if name != "__version__" and not (getattr(userlock, name).__doc__ or "").strip()
    ]
    assert undocumented == []


def test_every_error_is_under_one_base() -> None:
    errors = [
        value
        for value in vars(userlock).values()
        if isinstance(value, type) and issubclass(value, BaseException)
    ]
    assert len(errors) > 15
    # What stores tell the service never leaves it; see its docstring.
    others = [error for error in errors if not issubclass(error, userlock.UserLockError)]
    assert others == [userlock.StoreUnavailable]
