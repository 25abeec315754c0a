"""The public names that need no ndb, each with its module; docs/reference documents them."""

# isort would write one statement for each name.
# isort: skip_file
from userlock.errors import (
    AbstractModelWritten as AbstractModelWritten,
    BatchOnlyModelWritten as BatchOnlyModelWritten,
    ClaimLost as ClaimLost,
    CommitInDoubt as CommitInDoubt,
    ConfigurationError as ConfigurationError,
    CreatedWithoutLock as CreatedWithoutLock,
    DeadlockDetected as DeadlockDetected,
    DeletedWithoutLock as DeletedWithoutLock,
    DeletionIncomplete as DeletionIncomplete,
    EntityExistsError as EntityExistsError,
    EntityNotFound as EntityNotFound,
    EventLoopBlocked as EventLoopBlocked,
    ExternalUnavailable as ExternalUnavailable,
    FlowChanged as FlowChanged,
    FlowError as FlowError,
    FlowTakenOver as FlowTakenOver,
    IdempotencyKeyRefused as IdempotencyKeyRefused,
    IdempotencyKeyReused as IdempotencyKeyReused,
    ImmutableEntityRewritten as ImmutableEntityRewritten,
    JobArgumentsRefused as JobArgumentsRefused,
    JobError as JobError,
    JobStagedOutside as JobStagedOutside,
    JobTimeLimit as JobTimeLimit,
    LeaseRanOut as LeaseRanOut,
    LeaseWasLost as LeaseWasLost,
    LockError as LockError,
    LockIdChanged as LockIdChanged,
    LockIdError as LockIdError,
    LockIdMissing as LockIdMissing,
    LockNotHeld as LockNotHeld,
    LockServiceUnavailable as LockServiceUnavailable,
    LockTimeout as LockTimeout,
    NoScope as NoScope,
    NoService as NoService,
    NotInTransaction as NotInTransaction,
    NotSignedIn as NotSignedIn,
    NotStorable as NotStorable,
    NotUnique as NotUnique,
    PartialEntityPut as PartialEntityPut,
    PutAfterRelease as PutAfterRelease,
    PutWithoutLock as PutWithoutLock,
    ReadOnlyModelWritten as ReadOnlyModelWritten,
    ReadUnderEarlierTenure as ReadUnderEarlierTenure,
    ReadWithoutLock as ReadWithoutLock,
    RequestIncomplete as RequestIncomplete,
    RequestRunning as RequestRunning,
    RequestTooLarge as RequestTooLarge,
    StaleObjectPut as StaleObjectPut,
    StaleWriteError as StaleWriteError,
    StructuredModelWritten as StructuredModelWritten,
    TooManyWaiting as TooManyWaiting,
    UnknownJob as UnknownJob,
    UserLockError as UserLockError,
    WriteAfterCommit as WriteAfterCommit,
    WriteNotFenced as WriteNotFenced,
    WriteViolation as WriteViolation,
    WrongTransaction as WrongTransaction,
)
from userlock.lock.api import (
    acquire_lock as acquire_lock,
    break_lock as break_lock,
    global_lock as global_lock,
    global_locks as global_locks,
    holder as holder,
    release_lock as release_lock,
    waiters as waiters,
    with_extension as with_extension,
)
from userlock.lock.configuration import (
    configure as configure,
)
from userlock.lock.held_lock import (
    HeldLock as HeldLock,
)
from userlock.lock.lease import (
    Holder as Holder,
    Lease as Lease,
    Priority as Priority,
)
from userlock.lock.policy import (
    LockPolicy as LockPolicy,
    OutagePolicy as OutagePolicy,
    Polling as Polling,
    PriorityPolicy as PriorityPolicy,
)
from userlock.lock.record import (
    Waiter as Waiter,
)
from userlock.lock.scope import (
    LockScope as LockScope,
    current_scope as current_scope,
    scope as scope,
)
from userlock.lock.service import (
    LockService as LockService,
)
from userlock.lock.store import (
    LeaseStore as LeaseStore,
    Stored as Stored,
    StoreUnavailable as StoreUnavailable,
)
from userlock.reports import (
    SiteReport as SiteReport,
    violations as violations,
)
from userlock.settings import (
    Enforcement as Enforcement,
    Reaction as Reaction,
    Settings as Settings,
)
