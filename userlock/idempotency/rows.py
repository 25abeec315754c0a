"""Requests with an idempotency key, and their rows in Datastore.

    UserLockOwner ann                          no entity of its own: the root of the group
      UserLockRequest =4e7c…-rides             one request, under its idempotency key

A row that is not finished has no expiry: nothing may remove or replace it. The transaction that
stores the answer sets it.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from google.cloud import ndb

from userlock.errors import IdempotencyKeyRefused, IdempotencyKeyReused, NotStorable
from userlock.json_values import check, written
from userlock.lock.lease import check_lock_id
from userlock.ndb import owners
from userlock.ndb.direct import Field, PackedModel
from userlock.ndb.model import WriteIdProperty
from userlock.ndb.policies import WritePolicy

#: An entity has at most 1 MiB. The rest is room for the other properties.
MOST_BYTES = 900_000
#: Of the parameters that are stored beside the outputs. What JSON needs shrinks to six sevenths.
MOST_PARAMS_BYTES = 200_000

#: The beginnings of `RequestRow.standing`: an unfinished request that the server can complete, or
#: its client alone; a finished one.
OPEN, LEFT, DONE = "open", "left", "done"

_E = TypeVar("_E", bound=Exception)
_KEY = re.compile(r"[!-~]{1,255}")


def _standing_of(row: Any) -> str:
    if row.expire_at is None:
        return owners.shard_index(LEFT if row.params is None else OPEN, row.key, row.complete_at)
    return owners.shard_index(DONE, row.key, owners.micros_of(row.expire_at))


class RequestRow(PackedModel):
    """A request. Times are in microseconds since 1970."""

    _write_policy = WritePolicy.unsafe(
        "each write is fenced, or in a transaction that has read the row; attempts have tokens"
    )
    _userlock_always_fenced = True
    _userlock_stays = True
    _payload = "body"
    write_id = WriteIdProperty()

    data = ndb.BlobProperty(compressed=True)
    #: When it may be removed, also by Datastore's own expiry. Only of a finished one.
    expire_at = ndb.DateTimeProperty(indexed=False)
    #: Unfinished, the shard, and `complete_at`; or finished, and when it may be removed.
    standing = ndb.ComputedProperty(_standing_of)

    user = Field()
    idempotency_key = Field()
    flow = Field()
    method = Field("")
    path = Field("")
    digest = Field()
    #: And the route's arguments, as JSON. None: the server cannot complete it, or it is finished.
    params = Field()
    begun_at = Field()
    attempts = Field(0)  # how many have begun
    token = Field("")  # of the attempt that may write; empty for none
    claimed_until = Field(0)  # when others may take it over without the lock
    #: Whether that attempt has the user's lock for certain, or in a call the call's lock. Then
    #: another one that has it may take the request over before.
    claimed_locked = Field(False)
    calling = Field(False)  # whether it may be in a call, without the user's lock
    complete_at = Field(0)  # when the server may complete it
    points = Field("[]")  # what has been done, as JSON: see `points_in`; finished without outputs
    status = Field()  # of the answer; None: there is none yet
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
        return expire_at is not None and owners.micros_of(expire_at) <= now

    @classmethod
    def fields_of(cls, key: Any, now: int) -> dict[str, Any] | None:
        """Return the fields of a row, for a reader; {} if it has expired, None if it is missing."""
        found = cls.stored(key)
        if found is None:
            return None
        fields, properties = found
        expire_at = properties["expire_at"]
        expires = expire_at.HasField("timestamp_value")
        return {} if expires and expire_at.timestamp_value.ToMicroseconds() <= now else fields


#: When the server may complete a request, after its first attempt; doubles with each, up to that.
_COMPLETE_SECONDS = (300.0, 3600.0)


def complete_after(attempts: int) -> int:
    """Return how long after an attempt the server may complete the request, in microseconds."""
    first, most = _COMPLETE_SECONDS
    return round(min(first * 2.0 ** min(attempts - 1, 30), most) * 1e6)


def requests_before(standing: str, micros: int | None = None) -> Iterator[Any]:
    """Yield the keys of requests that stand so, and whose time is before that one, by that time.

    Of all namespaces and shards, so that those of no user are always the first.
    """
    shards = [
        query(namespace, standing, shard, before=micros).iter(projection=[RequestRow.standing])
        for namespace in owners.namespaces()
        if query(namespace, standing).get(keys_only=True) is not None
        for shard in range(owners.SHARDS)
    ]
    for row in heapq.merge(*shards, key=lambda row: row.standing.rpartition("|")[2]):
        yield row.key


def query(namespace: str, standing: str, shard: int | None = None, **options: Any) -> Any:
    """Return a query of the requests that stand so, by their time; options of `shard_query`."""
    index = RequestRow.standing
    return owners.shard_query(index, RequestRow, standing, shard, namespace=namespace, **options)


def keys_of_owner(user_id: str, most: int = 1_000) -> list[Any]:
    """Return the keys of a user's requests, in the namespace of the running code."""
    found = RequestRow.query(ancestor=owners.owner_key(user_id))
    return list(found.fetch(most, keys_only=True))


def request_key(user_id: str, key: str) -> Any:
    """Return the key of a user's request, in the namespace of the running code."""
    return owners.key_below(user_id, RequestRow, owners.name_of(key))


def points_in(encoded: str) -> list[dict[str, Any]]:
    """Return the recovery points of a request, in the order in which they were reached.

    A document each: `name`, `kind` ("phase" or "call"), and its `out`, which a call lacks that was
    begun and perhaps made.
    """
    return list(map(dict, json.loads(encoded)))


# --- requests -----------------------------------------------------------------------------------


class Request(NamedTuple):
    """A request with an idempotency key.

    Attributes:
        user_id: the owner of the key, a lock id.
        key: the idempotency key.
        flow: the name of the function that serves it.
        params: its parameters, a JSON value.
        method, path: of the HTTP request; empty for other calls.
        digest: of parameters that `params` does not have; empty: of `params`.
        arguments: of a view, from its route: a JSON object.
        completable: whether the parameters are stored, so that the server can complete it.
        namespace: of a request that was read from its row.
    """

    user_id: str
    key: str
    flow: str
    params: Any = None
    method: str = ""
    path: str = ""
    digest: str = ""
    arguments: Any = None
    completable: bool = True
    namespace: str = ""

    def error(self, kind: Callable[..., _E], text: str, **facts: Any) -> _E:
        return kind(text, user_id=self.user_id, key=self.key, **facts)


def checked(request: Request) -> Request:
    """Return a request with its digest; refuse a malformed key, and parameters that are no JSON."""
    request = request._replace(user_id=check_lock_id(request.user_id))
    key = request.key
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise IdempotencyKeyRefused(
            "an idempotency key has 1 to 255 visible ASCII characters, for example those of a "
            "random UUID",
            user_id=request.user_id,
            key=str(key)[:255],
        )
    digest = request.digest
    if request.completable or not digest:  # they are stored, or count by their value
        try:
            check([request.params, request.arguments], "the parameters")
        except ValueError as error:
            text = f"the parameters of {request.flow} cannot be stored: {error}"
            raise request.error(NotStorable, text) from None
    if not digest:
        encoded = written(request.params, sort_keys=True)
        if request.completable and len(encoded) > MOST_PARAMS_BYTES:
            raise request.error(
                NotStorable,
                f"the parameters of {request.flow} have {len(encoded):,} bytes as JSON; the most "
                f"is {MOST_PARAMS_BYTES:,}. To fix it: store data in entities, and pass their ids",
            )
        digest = hashlib.sha256(encoded).hexdigest()
    return request._replace(digest=digest)


def check_same(fields: Mapping[str, Any], request: Request, names: Collection[str]) -> None:
    """Refuse a request if the row of its key, with these fields, is another one's.

    A view whose name is none of this app's `names` is known by its address: it was renamed.
    """
    sent = (request.method, request.path, request.digest)
    stored, flow = tuple(map(fields.get, ("method", "path", "digest"))), fields.get("flow")
    renamed = request.method and flow not in names
    if stored != sent or not (flow == request.flow or renamed):
        raise request.error(
            IdempotencyKeyReused,
            "the idempotency key belongs to a request with other parameters. To fix it: send "
            "each request with a key of its own",
        )


def request_of(row: Any) -> Request:
    """Return the request of a row whose parameters are stored. Raises for a malformed row."""
    params, arguments = json.loads(row.params)
    if not isinstance(row.idempotency_key, str):
        raise TypeError("it has no idempotency key")
    return Request(
        check_lock_id(row.user),
        row.idempotency_key,
        row.flow,
        params,
        row.method,
        row.path,
        row.digest,
        arguments,
        namespace=row.key.namespace() or "",
    )
