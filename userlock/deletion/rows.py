"""The rows of deletions in Datastore.

    UserLockOwner ann                     no entity of its own: the root of the group
      UserLockDeletion 0006441f…          one deletion: what, since when, how far

A row is written in the transaction that deletes the root. It stays, as a log.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.cloud import ndb

from userlock.ndb.model import Model, WriteIdProperty
from userlock.ndb.owners import SHARDS, namespaces, owner_key, shard_index
from userlock.ndb.policies import WritePolicy


class DeletionRow(Model):
    """A deletion.

    Attributes:
        owner: the lock id.
        tree: the name of the tree.
        root: the key of its root.
        root_version: of the root that was deleted; 0 if it was gone already.
        superseded: whether a later root under its key has ended the deletion.
        asked_at: in microseconds since 1970.
        note: for readers of the log.
        deleted: the entities below the root that were deleted so far, at least.
        error: of the last run, if that has failed.
        ended_at: in microseconds since 1970; 0 while it is not finished.
        expire_at: when a TTL policy of Datastore may remove it. Only of a finished one.
        unfinished: the shard and `asked_at`; None once it is finished.
    """

    _write_policy = WritePolicy.IN_TRANSACTION
    write_id = WriteIdProperty()

    owner = ndb.JsonProperty(indexed=False)
    tree = ndb.TextProperty()
    root = ndb.KeyProperty(indexed=False)
    root_version = ndb.IntegerProperty(indexed=False, default=0)
    superseded = ndb.BooleanProperty(indexed=False, default=False)
    asked_at = ndb.IntegerProperty(indexed=False)
    note = ndb.TextProperty(default="")
    deleted = ndb.IntegerProperty(indexed=False, default=0)
    error = ndb.TextProperty(default="")
    ended_at = ndb.IntegerProperty(indexed=False, default=0)
    expire_at = ndb.DateTimeProperty(indexed=False)
    unfinished = ndb.ComputedProperty(lambda row: _unfinished_index(row))

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockDeletion"


def _unfinished_index(row: Any) -> str | None:
    return None if row.ended_at else shard_index("", row.key, row.asked_at)


class Deletion(NamedTuple):
    """A deletion as it stands.

    Attributes:
        id: names it, with its owner.
        owner: the lock id.
        tree: the name of the tree.
        root: the key of the root.
        asked_at: when it was asked for, in seconds since 1970.
        note: as `delete_tree` was given it.
        deleted: the entities below the root that were deleted so far, at least.
        error: of the last run, if that has failed; empty otherwise.
        ended_at: when all was deleted, in seconds since 1970; None while it goes on.
        superseded: whether it ended before, as there is a new root under the same key.
    """

    id: str
    owner: str
    tree: str
    root: Any
    asked_at: float
    note: str
    deleted: int
    error: str
    ended_at: float | None
    superseded: bool


def deletion_in(row: Any) -> Deletion:
    """Return the facts of a row."""
    return Deletion(
        id=row.key.id(),
        owner=row.owner,
        tree=row.tree,
        root=row.root,
        asked_at=row.asked_at / 1e6,
        note=row.note,
        deleted=row.deleted,
        error=row.error,
        ended_at=row.ended_at / 1e6 if row.ended_at else None,
        superseded=bool(row.superseded),
    )


def has_expired(row: Any) -> bool:
    """Return whether a TTL policy may have removed the row: it counts as removed."""
    if row.expire_at is None:
        return False
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)  # as in Datastore
    return bool(row.expire_at <= now)


def new_key(owner: str, micros: int) -> Any:
    """Return a key for a deletion that is asked for then."""
    return row_key(owner, f"{micros:016x}{secrets.token_hex(6)}")


def row_key(owner: str, id_: str) -> Any:
    """Return the key of an owner's deletion."""
    return ndb.Key(DeletionRow, id_, parent=owner_key(owner))


def rows_of(owner: str, most: int) -> list[Any]:
    """Return the rows of an owner, the latest first."""
    query = DeletionRow.query(ancestor=owner_key(owner))
    rows = query.fetch(use_cache=False, use_global_cache=False)
    kept = [row for row in rows if not has_expired(row)]
    return sorted(kept, key=lambda row: row.key.id(), reverse=True)[:most]


def unfinished_rows() -> Iterator[Any]:
    """Give the rows that are not finished."""
    index = DeletionRow.unfinished
    for namespace in namespaces():
        for shard in range(SHARDS):
            first = f"|{shard:02d}|"
            query = DeletionRow.query(index >= first, index < f"{first}~", namespace=namespace)
            yield from query.order(index)
