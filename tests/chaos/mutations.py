"""Negative controls: one rule of the library at a time is taken out.

Fencing is switched off by its own setting; the others are replaced in the
processes of the trial.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import RELEASED, Lease, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import Record
from userlock.ndb import enforcement, fencing, hooks, stub
from userlock.ndb.commits import key_of
from userlock.ndb.transactions import DatastoreParticipant


class Mutation(enum.Enum):
    """What is taken out."""

    NONE = "nothing"
    FENCING = "fencing"
    TICKETS = "writes leave without the version that they build on"
    INSERTS = "new entities are put as others are"
    GATE = "commits leave as ndb has made them"
    SUPPRESSED_APART = "a suppress block holds for all that runs meanwhile"
    CHECKED_RELEASE = "a release removes whatever is there"
    FRESH_READS = "under a lock the context cache answers with what was read before"
    HELD_TO_COMMIT = "a lock inside a transaction is released before the commit"
    BATCH_STANDS_BACK = "batch stands in line as people do"


def apply(mutation: Mutation) -> None:
    """Take it out of this process, for good."""
    if mutation is Mutation.TICKETS:
        _replace(fencing.Ticket, "base_version", _always(0))
    elif mutation is Mutation.INSERTS:
        _replace(fencing.PutTicket, "must_be_new", _always(False))
    elif mutation is Mutation.GATE:
        _replace(stub._Commit, "_plan_of", _without_plan)
    elif mutation is Mutation.SUPPRESSED_APART:
        _replace(enforcement, "_blocks_here", lambda: tuple(enforcement._open_blocks()))
    elif mutation is Mutation.CHECKED_RELEASE:
        _replace(LeaseProtocol, "release", _plain_delete)
    elif mutation is Mutation.FRESH_READS:
        _replace(hooks, "cached_is_good", lambda *_: True)
        _replace(hooks, "cached_miss_is_good", lambda *_: True)
    elif mutation is Mutation.HELD_TO_COMMIT:
        _replace(DatastoreParticipant, "postpone", _release_at_once)
    elif mutation is Mutation.BATCH_STANDS_BACK:
        _replace(Record, "_ranks_as_interactive", lambda *_: True)


def _always(value: object) -> property:
    """An attribute that stays as it is, whatever is assigned."""
    return property(lambda _: value, lambda *_: None)


def _without_plan(_: object, request: Any) -> None:
    """The tickets are taken out, or Datastore would keep them in the keys."""
    for mutation in getattr(request, "_pb", request).mutations:
        key_of(mutation).DiscardUnknownFields()


def _plain_delete(self: LeaseProtocol, lease: Lease) -> Released:
    record = self.look(lease.lock_id)
    if record is not None:
        self.store.remove(lease.lock_id, record.stored.version)
    return RELEASED


_MOMENT_SECONDS = 0.05
_postpone = DatastoreParticipant.postpone


def _release_at_once(
    self: DatastoreParticipant, tenure: HeldLock, release: Callable[[], None]
) -> None:
    """In the store alone: in this process the lock counts as held, or the commit is refused.

    A moment before the commit, so that somebody else has the time to take it.
    """
    tenure.scope.service.release(tenure.lease)
    time.sleep(_MOMENT_SECONDS)
    _postpone(self, tenure, release)


def _replace(owner: object, name: str, replacement: object) -> None:
    # `create`: of what is set in an object's __init__ its class knows nothing.
    mock.patch.object(owner, name, replacement, create=isinstance(replacement, property)).start()
