"""The public API is `__all__`, and changes on purpose only."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import userlock

PUBLIC = {
    "ExternalUnavailable",
    "FlowChanged",
    "FlowError",
    "FlowTakenOver",
    "IdempotencyKeyRefused",
    "IdempotencyKeyReused",
    "NotStorable",
    "NotUnique",
    "RequestRunning",
    "ClaimLost",
    "UnknownJob",
    "JobStagedOutside",
    "JobArgumentsRefused",
    "JobError",
    "AbstractModelWritten",
    "BatchOnlyModelWritten",
    "CommitInDoubt",
    "ConfigurationError",
    "CreatedWithoutLock",
    "DeadlockDetected",
    "DeletedWithoutLock",
    "DeletionIncomplete",
    "Enforcement",
    "EntityExistsError",
    "EntityNotFound",
    "EventLoopBlocked",
    "Holder",
    "StaleObjectPut",
    "Lease",
    "LeaseRanOut",
    "LeaseStore",
    "LeaseWasLost",
    "LockError",
    "LockIdChanged",
    "LockIdError",
    "LockIdMissing",
    "LockNotHeld",
    "LockPolicy",
    "LockScope",
    "LockService",
    "LockServiceUnavailable",
    "LockTimeout",
    "Model",
    "ReadOnlyModelWritten",
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
    "Reaction",
    "ReadUnderEarlierTenure",
    "ReadWithoutLock",
    "Settings",
    "SiteReport",
    "StaleWriteError",
    "StoreUnavailable",
    "Stored",
    "StructuredModelWritten",
    "TooManyWaiting",
    "HeldLock",
    "UserLockError",
    "UserModel",
    "Waiter",
    "WriteAfterCommit",
    "WriteNotFenced",
    "WriteIdProperty",
    "ImmutableEntityRewritten",
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
    "models_without_policy",
    "release_lock",
    "root_id",
    "scope",
    "suppress",
    "violations",
    "waiters",
    "with_extension",
}


def test_the_public_names_are_pinned() -> None:
    assert sorted(userlock.__all__) == sorted(PUBLIC)


def test_nothing_else_looks_public() -> None:
    others = {
        name
        for name in dir(userlock)
        if not name.startswith("_") and name not in PUBLIC
        if not isinstance(getattr(userlock, name), types.ModuleType)
    }
    assert others <= {"annotations", "TYPE_CHECKING"}


def test_a_name_that_is_none() -> None:
    """Type checkers see that, too: without the error, the `ignore` would be unused."""
    with pytest.raises(AttributeError, match="'userlock' has no attribute 'globl_lock'"):
        userlock.globl_lock  # type: ignore[attr-defined]  # noqa: B018


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
        for value in (getattr(userlock, name) for name in PUBLIC)
        if isinstance(value, type) and issubclass(value, BaseException)
    ]
    assert len(errors) > 15
    # Errors of stores for the service never leave it; see their docstring.
    others = [error for error in errors if not issubclass(error, userlock.UserLockError)]
    assert others == [userlock.StoreUnavailable]


# --- when it is fetched -------------------------------------------------------------------------

HOOKED = """
from google.cloud.ndb import _transaction
assert hasattr(_transaction.transaction_async_, "__wrapped__")
"""


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "program",
    [
        "from userlock import global_lock",
        "from userlock import *; global_lock",
        "import google.cloud.ndb, userlock; userlock.LockService",
        "import userlock.contrib.flask",
    ],
)
def test_every_lock_function_installs_the_hooks(program: str) -> None:
    run(program + HOOKED)


@pytest.mark.parametrize(
    "program",
    [
        "import userlock; userlock.__version__",
        "from userlock.cli import main; main(['--store', 'memory://', 'watch', '--once'])",
    ],
)
def test_the_command_line_does_without_ndb(program: str) -> None:
    run(f"{program}; import sys; assert 'google.cloud.ndb' not in sys.modules")


def test_the_service_alone_knows_the_stores() -> None:
    run("from userlock.lock.service import LockService; LockService.from_url('memory://')")
