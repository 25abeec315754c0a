"""The rows of requests in Datastore.

    UserLockOwner ann                          no entity of its own: the root of the group
      UserLockRequest =4e7c…-rides             one request, under its idempotency key

A row that is not finished has no expiry: nothing may remove or replace it. The
transaction that stores the answer sets it.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from typing import Any

from google.cloud import ndb

from userlock.ndb.direct import Field, PackedModel
from userlock.ndb.model import WriteIdProperty
from userlock.ndb.owners import (
    SHARDS,
    key_below,
    micros_of,
    name_of,
    namespaces,
    owner_key,
    shard_index,
)
from userlock.ndb.policies import WritePolicy

#: An entity has at most 1 MiB. The rest is room for the other properties.
MOST_BYTES = 900_000


class RequestRow(PackedModel):
    """A request.

    Attributes:
        user: the owner, a lock id.
        idempotency_key: as the client has sent it.
        flow: the name of the function.
        method, path: of the HTTP request; empty for other calls.
        digest: of the parameters.
        params: the parameters, and the arguments of the route, as JSON; None if the server cannot
            complete the request.
        begun_at: in microseconds since 1970.
        attempts: how many have begun.
        token: of the attempt that may write; empty for none.
        claimed_until: when others may take it over without the lock, in microseconds since 1970.
        claimed_locked: whether that attempt has the user's lock for certain. Then another one
            that has it may take it over before.
        calling: whether it may be within a call of another service, without the user's lock. Then
            `claimed_locked` is about the call's lock.
        complete_at: when the server may complete it, in microseconds since 1970.
        points: what has been done so far, as JSON: see `points_in`.
        status, headers, body: the answer; a status of None: there is none yet.
        finished_at: in microseconds since 1970.
        expire_at: when it may be removed, also by Datastore's own expiry. Only of a finished one.
        standing: unfinished, the shard, and `complete_at`; or finished, and when it may be removed.
    """

    _write_policy = WritePolicy.unsafe(
        "each write is fenced, or in a transaction that has read the row; attempts have tokens"
    )
    _userlock_always_fenced = True
    _userlock_stays = True
    _payload = "body"
    write_id = WriteIdProperty()

    data = ndb.BlobProperty(compressed=True)
    expire_at = ndb.DateTimeProperty(indexed=False)
    standing = ndb.ComputedProperty(lambda row: standing_of(row))

    user = Field()
    idempotency_key = Field()
    flow = Field()
    method = Field("")
    path = Field("")
    digest = Field()
    params = Field()
    begun_at = Field()
    attempts = Field(0)
    token = Field("")
    claimed_until = Field(0)
    claimed_locked = Field(False)
    calling = Field(False)
    complete_at = Field(0)
    points = Field("[]")
    status = Field()
    headers = Field()
    body = Field()
    finished_at = Field(0)

    @classmethod
    def _get_kind(cls) -> str:
        return "UserLockRequest"

    @property
    def is_finished(self) -> bool:
        return self.status is not None

    def has_expired(self, now: int) -> bool:
        """Return whether its answer is no longer kept. Datastore's own expiry may be a day late."""
        expire_at = self.expire_at
        return expire_at is not None and micros_of(expire_at) <= now

    @classmethod
    def fields_of(cls, key: Any, now: int) -> dict[str, Any] | None:
        """Return the fields of a row, for a reader; None if it is missing, or has expired."""
        found = cls.stored(key)
        if found is None:
            return None
        fields, properties = found
        expire_at = properties["expire_at"]
        expires = expire_at.HasField("timestamp_value")
        return None if expires and expire_at.timestamp_value.ToMicroseconds() <= now else fields


#: The beginnings of `RequestRow.standing`: an unfinished request that the server can complete, one
#: that its client alone can, a finished one.
OPEN, LEFT, DONE = "open", "left", "done"
#: When the server may complete a request, after its first attempt; doubles with each, up to that.
_COMPLETE_SECONDS = (300.0, 3600.0)
#: After all times.
_LATEST = 10**16 - 1


def complete_after(attempts: int) -> int:
    """Return how long after an attempt the server may complete the request, in microseconds."""
    first, most = _COMPLETE_SECONDS
    return round(min(first * 2.0 ** min(attempts - 1, 30), most) * 1e6)


def standing_of(row: Any) -> str:
    """Return the value of `standing` of a request."""
    if row.expire_at is None:
        return shard_index(LEFT if row.params is None else OPEN, row.key, row.complete_at)
    return shard_index(DONE, row.key, micros_of(row.expire_at))


def requests_before(standing: str, micros: int = _LATEST) -> Iterator[Any]:
    """Yield the keys of requests that stand so, and whose time is before that one, by that time.

    Of all namespaces and shards, so that those of no user are always the first.
    """
    shards = [
        oldest(namespace, standing, shard, before=micros).iter(projection=[RequestRow.standing])
        for namespace in namespaces()
        if _standing_so(namespace, f"{standing}|", f"{standing}}}").get(keys_only=True) is not None
        for shard in range(SHARDS)
    ]
    for row in heapq.merge(*shards, key=lambda row: row.standing.rpartition("|")[2]):
        yield row.key


def oldest(namespace: str, standing: str, shard: int, *, before: int = _LATEST) -> Any:
    """Return a query of the requests of a shard that stand so, by their time."""
    first = f"{standing}|{shard:02d}|"
    query = _standing_so(namespace, first, f"{first}{max(before, 0):016d}")
    return query.order(RequestRow.standing)


def newest(namespace: str, standing: str, shard: int) -> Any:
    """Return the same query, the latest first."""
    first = f"{standing}|{shard:02d}|"
    return _standing_so(namespace, first, f"{first}~").order(-RequestRow.standing)


def _standing_so(namespace: str, first: str, last: str) -> Any:
    standing = RequestRow.standing
    return RequestRow.query(standing >= first, standing < last, namespace=namespace)


def keys_of_owner(user_id: str, most: int = 1_000) -> list[Any]:
    """Return the keys of a user's requests, in the namespace of the running code."""
    query = RequestRow.query(ancestor=owner_key(user_id))
    return list(query.fetch(most, keys_only=True))


def request_key(user_id: str, key: str) -> Any:
    """Return the key of a user's request, in the namespace of the running code."""
    return key_below(user_id, RequestRow, name_of(key))


def points_in(encoded: str) -> list[dict[str, Any]]:
    """Return the recovery points of a request, in the order in which they were reached.

    A document each: `name`, `kind` ("phase" or "call"), and its `out`; of a call that
    was begun and perhaps made, `asked` instead.
    """
    return [dict(each) for each in json.loads(encoded)]
