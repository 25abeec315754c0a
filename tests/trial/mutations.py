"""Negative controls: one rule of the library at a time is taken out.

Fencing is switched off by its own setting; the others are replaced in the
processes of the trial.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from unittest import mock

from userlock.lock.lease import RELEASED, Lease, Released
from userlock.lock.leases import Leases
from userlock.lock.record import Record
from userlock.lock.tenure import Tenure
from userlock.ndb.handler import ModelHandler
from userlock.ndb.transactions import DatastoreParticipant


class Mutation(enum.Enum):
    """What is taken out."""

    NONE = "nothing"
    FENCING = "fencing"
    CHECKED_RELEASE = "a release removes whatever is there"
    FRESH_READS = "under a lock the context cache answers with what was read before"
    HELD_TO_COMMIT = "a lock inside a transaction is released before the commit"
    BATCH_STANDS_BACK = "batch stands in line as people do"


def apply(mutation: Mutation) -> None:
    """Take it out of this process, for good."""
    if mutation is Mutation.CHECKED_RELEASE:
        _replace(Leases, "release", _plain_delete)
    elif mutation is Mutation.FRESH_READS:
        _replace(ModelHandler, "cached_is_good", lambda *_: True)
        _replace(ModelHandler, "cached_miss_is_good", lambda *_: True)
    elif mutation is Mutation.HELD_TO_COMMIT:
        _replace(DatastoreParticipant, "postpone", _release_at_once)
    elif mutation is Mutation.BATCH_STANDS_BACK:
        _replace(Record, "_urgent", lambda *_: True)


def _plain_delete(self: Leases, lease: Lease) -> Released:
    record = self.look(lease.lock_id)
    if record is not None:
        self.store.remove(lease.lock_id, record.stored.version)
    return RELEASED


_MOMENT_SECONDS = 0.05
_postpone = DatastoreParticipant.postpone


def _release_at_once(
    self: DatastoreParticipant, tenure: Tenure, release: Callable[[], None]
) -> None:
    """In the store alone: in this process the lock counts as held, or the commit is refused.

    A moment before the commit, so that somebody else has the time to take it.
    """
    tenure.scope.service.release(tenure.lease)
    time.sleep(_MOMENT_SECONDS)
    _postpone(self, tenure, release)


def _replace(owner: type, name: str, replacement: object) -> None:
    mock.patch.object(owner, name, replacement).start()
