"""Negative controls: one rule of the library at a time is disabled.

Fencing is disabled by its own setting. The other rules are replaced in the processes of the run.
"""

from __future__ import annotations

import enum
import os
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from google.cloud import ndb

from tests.chaos import mail
from userlock.constraints import claims as claim_rows
from userlock.datastore_rpc import Mutation as RowMutation
from userlock.deletion.tree import Tree
from userlock.deletion.walk import Walk
from userlock.idempotency import Flow
from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import RELEASED, Lease, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import Record
from userlock.lock.store import LeaseStore
from userlock.ndb import hooks, owners, stub, writes
from userlock.ndb.commits import key_of
from userlock.ndb.provenance import Ledger
from userlock.ndb.transactions import DatastoreParticipant
from userlock.outbox import relay, worker
from userlock.outbox.job import Job
from userlock.outbox.rows import JobRow
from userlock.stores import ShardedMemcacheStore
from userlock.stores.datastore import store as datastore_store
from userlock.stores.datastore.rpc import Calls
from userlock.stores.redis import cluster


class Mutation(enum.Enum):
    """The disabled rule."""

    NONE = "nothing"
    FENCING = "fencing"
    TICKETS = "writes are sent without their base version"
    INSERTS = "creations are sent as upserts"
    READS_KEPT = "a delete after a failed put builds on no read"
    GATE = "commits are sent unchanged from ndb"
    UNGUARDED_ALONE = "an unguarded put lets others pass"
    CHECKED_RELEASE = "a release removes any record"
    FRESH_READS = "the context cache serves earlier reads under a lock"
    HELD_TO_COMMIT = "a lock inside a transaction is released before the commit"
    BATCH_STANDS_BACK = "batch ranks as interactive"
    AGREED_SERVER = "processes disagree on the server of a lock"
    REDIRECTIONS = "a cluster's redirections are ignored"
    ONE_BREAKER = "one breaker for all nodes of a cluster"
    COMPARED_ROWS = "a row is overwritten, whatever is there"
    SHARED_FALLBACK = "each process has a fallback of its own"
    JOBS_CLAIMED = "a claimed job is claimed by others"
    JOBS_CLAIM_CHECKED = "a worker that has lost its claim ends that of another one"
    JOBS_ONE_COMMIT = "a transactional job and its removal are two commits"
    JOBS_STAGED_INSIDE = "a job is staged outside of the transaction"
    JOBS_ORDERED = "the jobs of a user run in any order"
    JOBS_COMMIT_ORDER = "jobs are ordered by the clocks of the processes that staged them"
    JOBS_DUE_AT_ONCE = "a job is due by the clock of the process that staged it"
    ROWS_APART = "the rows of all namespaces are in one"
    PROVIDER_KEYS = "a provider is asked with another key each time"
    JOBS_RELAYED = "the relay asks once for each job"
    CLAIMS_CHECKED = "a value may be another entity's"
    CLAIMS_FREED = "the claims of given-up values stay"
    TREES_ONE_COMMIT = "a root is deleted before its job is staged"
    TREES_DECLARED = "a deletion only finds what is below a key path"


def _always(value: object) -> property:
    """Return an attribute that never changes, whatever is assigned."""
    return property(lambda _: value, lambda *_: None)


def _without_plan(_: object, request: Any) -> None:
    """Remove the tickets only, because Datastore would store them in the keys."""
    for mutation in getattr(request, "_pb", request).mutations:
        key_of(mutation).DiscardUnknownFields()


async def _plain_delete(self: LeaseProtocol, lease: Lease) -> Released:
    record = await self.look(lease.lock_id)
    if record is not None:
        await self.store.aremove(lease.lock_id, record.stored.version)
    return RELEASED


_MOMENT_SECONDS = 0.05
_postpone = DatastoreParticipant.postpone


def _release_at_once(
    self: DatastoreParticipant, tenure: HeldLock, release: Callable[[], None]
) -> Any:
    """Release in the store alone: in this process the lock counts as held, or the commit is
    refused.

    It happens a moment before the commit, so that another client has time to take the lock.
    """
    tenure._scope.service.release(tenure._lease)
    time.sleep(_MOMENT_SECONDS)
    return _postpone(self, tenure, release)


_commit = Calls.commit


def _overwrite(self: Calls, mutation: Any) -> Any:
    operation = mutation.WhichOneof("operation")
    if operation in ("insert", "update"):
        mutation = RowMutation(upsert=getattr(mutation, operation))
    return _commit(self, mutation)


_APART = ndb.TransactionOptions.INDEPENDENT


def _call_then_remove(self: Any, job: Any, claim: Any) -> None:
    ndb.transaction(lambda: self._call(job, claim), propagation=_APART)
    claim.current()
    claim.key.delete()


_stage = Job.stage


def _stage_apart(self: Any, *args: Any, **options: Any) -> Any:
    return ndb.transaction(lambda: _stage(self, *args, **options), propagation=_APART)


def _any_job(self: Any, now: int) -> Any:
    ready = [row for row in self._rows if row.dead is None and row.is_ready(now)]
    return random.choice(ready) if ready else None


def _key_of_one_namespace(*path: Any, **options: Any) -> Any:
    return ndb.Key(*path, **options | {"namespace": ""})


_changes = claim_rows.changes


def _without_deletes(*args: Any) -> Any:
    return [each for each in _changes(*args) if not each.HasField("delete")]


_delete_tree = Tree.delete


def _delete_then_log(self: Any, root: Any, owner: Any, note: str = "") -> Any:
    ndb.transaction(lambda: root.delete())
    return _delete_tree(self, root, owner)


_walk = Walk.__init__


def _undeclared(self: Any, children: Any, page: int, checkpoint: Any) -> None:
    _walk(self, {}, page, checkpoint)


_put = writes.Put.__init__
_unguarded: list[str] = []


def _unguarded_as_another(
    self: Any, model: Any, key: Any, at: Any, context: Any, unguarded: Any = None, **facts: Any
) -> None:
    _unguarded.extend([unguarded] if unguarded else [])
    _put(self, model, key, at, context, next(iter(_unguarded), None), **facts)


#: What is replaced in the processes of a run. Fencing is disabled by its own setting.
_REPLACED: Mapping[Mutation, Sequence[tuple[object, str, object]]] = {
    Mutation.TICKETS: [(writes.Write, "base_version", _always(0))],
    Mutation.INSERTS: [(writes.Put, "must_be_new", _always(False))],
    Mutation.READS_KEPT: [(Ledger, "last", lambda *_: None)],
    Mutation.GATE: [(stub._Commit, "_plan_of", _without_plan)],
    Mutation.UNGUARDED_ALONE: [(writes.Put, "__init__", _unguarded_as_another)],
    Mutation.CHECKED_RELEASE: [(LeaseProtocol, "release", _plain_delete)],
    Mutation.FRESH_READS: [
        (hooks, "cached_is_good", lambda *_: True),
        (hooks, "cached_miss_is_good", lambda *_: True),
    ],
    Mutation.HELD_TO_COMMIT: [(DatastoreParticipant, "postpone", _release_at_once)],
    Mutation.BATCH_STANDS_BACK: [(Record, "_ranks_as_batch", lambda *_: False)],
    Mutation.AGREED_SERVER: [
        (ShardedMemcacheStore, "shard_of", lambda self, _: os.getpid() % len(self.servers))
    ],
    Mutation.REDIRECTIONS: [(cluster, "_REDIRECTIONS", ())],
    Mutation.ONE_BREAKER: [(cluster.ClusterStore, "shard_of", LeaseStore.shard_of)],
    Mutation.COMPARED_ROWS: [(Calls, "commit", _overwrite)],
    Mutation.SHARED_FALLBACK: [
        (datastore_store, "row_name", lambda _, lock_id: f"{os.getpid()}={lock_id}")
    ],
    Mutation.JOBS_CLAIMED: [(worker, "_is_claimed", lambda *_, **__: False)],
    Mutation.JOBS_CLAIM_CHECKED: [(worker, "_is_mine", lambda *_: True)],
    Mutation.JOBS_ONE_COMMIT: [(worker.Worker, "_call_and_remove", _call_then_remove)],
    Mutation.JOBS_STAGED_INSIDE: [(Job, "stage", _stage_apart)],
    Mutation.JOBS_ORDERED: [(worker.Queue, "first", _any_job)],
    Mutation.JOBS_COMMIT_ORDER: [
        (JobRow, "rank", property(lambda row: (row.staged_at, row.index)))
    ],
    Mutation.JOBS_DUE_AT_ONCE: [(JobRow, "is_ready", lambda row, micros: row.ready_at <= micros)],
    Mutation.ROWS_APART: [(owners, "ndb", SimpleNamespace(Key=_key_of_one_namespace))],
    Mutation.PROVIDER_KEYS: [(Flow, "_key_of", lambda *_: uuid.uuid4().hex)],
    # Of an owner's jobs the last one shows it, if both of its messages are lost.
    Mutation.JOBS_RELAYED: [(relay, "_AGAIN_SECONDS", (1e9,)), (mail, "_LOST", 0.6)],
    Mutation.CLAIMS_CHECKED: [(claim_rows, "find_taken", lambda *_: {})],
    Mutation.CLAIMS_FREED: [(claim_rows, "changes", _without_deletes)],
    Mutation.TREES_ONE_COMMIT: [(Tree, "delete", _delete_then_log)],
    Mutation.TREES_DECLARED: [(Walk, "__init__", _undeclared)],
}


def apply(mutation: Mutation) -> None:
    """Disable the rule in this process, for good."""
    for owner, name, replacement in _REPLACED.get(mutation, ()):
        # `create`: the class does not know attributes that are set in an object's __init__.
        create = isinstance(replacement, property)
        mock.patch.object(owner, name, replacement, create=create).start()
