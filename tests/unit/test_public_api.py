"""The public API is what `__all__` says, and changes on purpose only."""

from __future__ import annotations

import types

import userlock

PUBLIC = {
    "Backoff",
    "ConfigurationError",
    "CreatedWithoutLock",
    "DeletedWithoutLock",
    "Enforcement",
    "EntityExistsError",
    "EntityNotFound",
    "Holder",
    "InternalStomp",
    "Lease",
    "LeaseRanOut",
    "LeaseStore",
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
    "Priority",
    "PriorityPolicy",
    "PutAfterRelease",
    "PutWithoutLock",
    "ReadUnderEarlierTenure",
    "ReadWithoutLock",
    "Settings",
    "StaleWriteError",
    "Tenure",
    "UserLockError",
    "UserModel",
    "WriteAfterCommit",
    "WriteViolation",
    "__version__",
    "acquire_lock",
    "configure",
    "current_scope",
    "fetch_under_user_write_lock",
    "global_lock",
    "key_id",
    "lock_id_of",
    "release_lock",
    "root_id",
    "scope",
    "suppress",
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
    assert all(issubclass(error, userlock.UserLockError) for error in errors)
