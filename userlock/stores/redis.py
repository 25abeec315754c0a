"""Leases in Redis (extra `redis`), each verb one Lua script.

A script runs alone, so every verb is atomic and takes one round trip: the
token is compared and the lease changed in one step. After a lost reply the
same script can be sent again at any time: it finds the claim's own record.

Guarantees and limits are those of one Redis: a lease that was granted and not
yet replicated is gone after a fail-over, and the lock then does not exclude;
fencing at the Datastore commit refuses the loser's write. Times to live are
exact to the millisecond; a lease is stored for a second longer than its
holder believes in it. The look-up of the server's name is the system's and
has no timeout of ours.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.lease import (
    ANNOUNCE_SECONDS,
    Claim,
    Free,
    Granted,
    Held,
    Holder,
    Lease,
    Lost,
    Priority,
    Released,
    Unavailable,
    Yielded,
)

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:  # pragma: no cover (ndb brings it along today)
    raise ImportError("the Redis store needs redis-py: pip install 'userlock[redis]'") from error

CONNECT_TIMEOUT = 0.1
REPLY_TIMEOUT = 0.3
_SLACK_SECONDS = 1.0

# KEYS: the lease, who waits. ARGV: record, ttl in ms, token, "batch"/"announce"/"", ms.
_ADD = """
if ARGV[4] == 'batch' and redis.call('exists', KEYS[2]) == 1 then return 'yielded' end
if ARGV[4] == 'announce' then redis.call('set', KEYS[2], ARGV[3], 'px', ARGV[5]) end
local found = redis.call('get', KEYS[1])
if found and found ~= ARGV[1] then return {found} end
redis.call('set', KEYS[1], ARGV[1], 'px', ARGV[2])
return 'granted'
"""

# KEYS: the lease. ARGV: how a record with our token begins, new ttl in ms or '' to delete.
_IF_OURS = """
local found = redis.call('get', KEYS[1])
if not found then return 'gone' end
if string.sub(found, 1, #ARGV[1]) ~= ARGV[1] then return {found} end
if ARGV[2] == '' then redis.call('del', KEYS[1]) else redis.call('pexpire', KEYS[1], ARGV[2]) end
return 'done'
"""

_WITHDRAW = """
if redis.call('get', KEYS[1]) == ARGV[1] then redis.call('del', KEYS[1]) end
return 'done'
"""


class RedisStore:
    """A lease store in one Redis. Thread-safe; survives fork (as redis-py's pools do).

    Args:
        client: a `redis.Redis`, with tight timeouts of its own; see `from_url`.
        prefix: begins every key, so that deployments can share a server.
        clock: for lease deadlines.
    """

    def __init__(
        self, client: Any, *, prefix: str = "userlock", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._clock = clock
        self._add = client.register_script(_ADD)
        self._if_ours = client.register_script(_IF_OURS)
        self._withdraw = client.register_script(_WITHDRAW)

    @classmethod
    def from_url(cls, url: str) -> RedisStore:
        """The store that `redis://[USER:PASSWORD@]HOST:PORT/DB?prefix=NAME` names.

        Other options of the query go to redis-py.

        Raises:
            ValueError: says what is wrong with the URL.
        """
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        prefix = options.pop("prefix", "userlock")
        if not prefix:
            raise ValueError(f"{url!r}: the prefix must not be empty")
        bare = urlunsplit(parts._replace(query=urlencode(options)))
        client = redis.Redis.from_url(
            bare,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_timeout=REPLY_TIMEOUT,
            # Once, for a connection that stood idle while the server restarted.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )
        return cls(client, prefix=prefix)

    def add(
        self, claim: Claim, *, announce: bool = False
    ) -> Granted | Held | Yielded | Unavailable:
        asked_at = self._clock.now()
        batch = claim.priority is Priority.BATCH
        manner = "batch" if batch else "announce" if announce else ""
        try:
            answer = self._add(
                keys=[self._lease_key(claim.lock_id), self._waiting_key(claim.lock_id)],
                args=[
                    claim.holder.encode(),
                    _milliseconds(claim.ttl_seconds),
                    claim.token,
                    manner,
                    _milliseconds(ANNOUNCE_SECONDS),
                ],
            )
        except redis.RedisError as error:
            return _unavailable(error)
        if answer == b"granted":
            deadline = asked_at + claim.ttl_seconds
            return Granted(Lease(claim.lock_id, claim.token, deadline, claim.ttl_seconds))
        if answer == b"yielded":
            return Yielded()
        return Held(Holder.decode(answer[0]))

    def withdraw(self, claim: Claim) -> None:
        if claim.priority is Priority.BATCH:
            return  # batch announces nothing
        try:
            self._withdraw(keys=[self._waiting_key(claim.lock_id)], args=[claim.token])
        except redis.RedisError:
            return  # it ends by itself

    def extend(self, lease: Lease, ttl_seconds: float) -> Granted | Lost | Unavailable:
        asked_at = self._clock.now()
        outcome = self._change(lease, _milliseconds(ttl_seconds))
        if not isinstance(outcome, Released):
            return outcome
        return Granted(
            dataclasses.replace(
                lease,
                deadline=asked_at + ttl_seconds,
                ttl_seconds=ttl_seconds,
                degraded=False,
            )
        )

    def release(self, lease: Lease) -> Released | Lost | Unavailable:
        return self._change(lease, "")

    def _change(self, lease: Lease, ttl: int | str) -> Released | Lost | Unavailable:
        try:
            answer = self._if_ours(
                keys=[self._lease_key(lease.lock_id)], args=[f'["{lease.token}",', ttl]
            )
        except redis.RedisError as error:
            return _unavailable(error)
        if answer == b"done":
            return Released()
        return Lost(None if answer == b"gone" else Holder.decode(answer[0]))

    def read(self, lock_id: str) -> Held | Free | Unavailable:
        try:
            record = self._client.get(self._lease_key(lock_id))
        except redis.RedisError as error:
            return _unavailable(error)
        return Free() if record is None else Held(Holder.decode(record))

    def close(self) -> None:
        self._client.close()

    def _lease_key(self, lock_id: str) -> bytes:
        return f"{self._prefix}:lock={lock_id}".encode("utf-8", "surrogatepass")

    def _waiting_key(self, lock_id: str) -> bytes:
        return f"{self._prefix}:wait={lock_id}".encode("utf-8", "surrogatepass")


def _milliseconds(ttl_seconds: float) -> int:
    return int((ttl_seconds + _SLACK_SECONDS) * 1000) + 1


def _unavailable(error: Exception) -> Unavailable:
    return Unavailable(f"redis: {error}")
