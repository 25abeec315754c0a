"""What each write policy but the user's lock wants of a put or a delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from userlock.errors import (
    AbstractWritten,
    BatchOnlyWritten,
    InternalStomp,
    NeverWrittenWritten,
    NotInTransaction,
    StructuredOnlyWritten,
    WriteOnceRewritten,
    WriteViolation,
    WrongTransaction,
)
from userlock.lock.lease import Priority
from userlock.lock.scope import current_scope
from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.lastputs import newer_put, put_in_running_transaction
from userlock.ndb.policies import WritePolicy
from userlock.ndb.stamps import Stamp

#: A violation to be: its class, and what is special about this case.
Finding = tuple[type[WriteViolation], str]


def finding_of_put(entity: Any, policy: WritePolicy, stamp: Stamp | None) -> Finding | None:
    """What is wrong with putting an entity of that policy now. None for `unsafe`."""
    find = _OF_PUT.get(policy)
    if find is None:
        return None
    found = find(entity, stamp)
    return stomp(entity, stamp, None) if found is None and hooks.in_transaction() else found


def finding_of_delete(policy: WritePolicy) -> Finding | None:
    """What is wrong with deleting an entity of that policy now."""
    find = _OF_DELETE.get(policy)
    return None if find is None else find()


def stomp(entity: Any, stamp: Stamp | None, tenure: Tenure | None) -> Finding | None:
    """Whether this is an older object of an entity, and a newer one has been put.

    Under a tenure, else in the running transaction.
    """
    newer = newer_put(entity, stamp, tenure)
    if newer is None:
        return None
    return InternalStomp, f"the newer object was put at {newer.place or 'a place not captured'}"


def _not_in_its_transaction(entity: Any, stamp: Stamp | None) -> Finding | None:
    transaction = hooks.current_transaction()
    if transaction is None:
        # Nobody else can know the id that Datastore is about to allocate.
        new = stamp is None and not hooks.is_complete(entity._key)
        return None if new else (NotInTransaction, "")
    if stamp is not None and stamp.transaction != transaction:
        where = "outside of any" if stamp.transaction is None else "in another one"
        return WrongTransaction, f"it was read, or last put, {where}"
    return None


def _written_again(entity: Any, stamp: Stamp | None) -> Finding | None:
    again = stamp is not None or put_in_running_transaction(entity)
    return (WriteOnceRewritten, "") if again else None


def _not_from_batch() -> Finding | None:
    scope = current_scope()
    if scope is None:
        return BatchOnlyWritten, "there is no scope here"
    if scope.batch_work:
        return None
    name = scope.request or "this scope"
    if scope.priority is Priority.BATCH:
        return BatchOnlyWritten, (
            f"{name} is batch by a header that anybody can send: name its path in batch_prefixes, "
            f"or the header in trusted_headers if nobody but the queue can send it"
        )
    return BatchOnlyWritten, f"{name} is interactive"


_OF_PUT: Mapping[WritePolicy, Callable[[Any, Stamp | None], Finding | None]] = {
    WritePolicy.IN_TRANSACTION: _not_in_its_transaction,
    WritePolicy.WRITE_ONCE: _written_again,
    WritePolicy.NEVER_WRITTEN: lambda entity, stamp: (NeverWrittenWritten, ""),
    WritePolicy.BATCH_ONLY: lambda entity, stamp: _not_from_batch(),
    WritePolicy.ABSTRACT: lambda entity, stamp: (AbstractWritten, ""),
    WritePolicy.STRUCTURED_ONLY: lambda entity, stamp: (StructuredOnlyWritten, ""),
}

_OF_DELETE: Mapping[WritePolicy, Callable[[], Finding | None]] = {
    WritePolicy.IN_TRANSACTION: lambda: None if hooks.in_transaction() else (NotInTransaction, ""),
    WritePolicy.NEVER_WRITTEN: lambda: (NeverWrittenWritten, ""),
    WritePolicy.BATCH_ONLY: _not_from_batch,
    WritePolicy.ABSTRACT: lambda: (AbstractWritten, ""),
    WritePolicy.STRUCTURED_ONLY: lambda: (StructuredOnlyWritten, ""),
}
