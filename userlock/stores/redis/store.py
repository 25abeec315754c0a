"""Leases in Redis (extra `redis`): one command or script a verb, one round trip each.

    create   SET … NX PX                   swap     get, compare, SET … PX
    read     STRLEN, GET and PTTL          remove   get, compare, DEL
                                           append   STRLEN, APPEND, GET and PTTL

A script runs alone, so each is atomic. A record is stored behind a head, a
random line of its own that each creation and swap draws:

    #kZ0x3v9TqY1bW5uD
    ["4f01","interactive",1763640000.123,60.0,"web-1/77","POST /answers"]
    +i 4f02 1763640000.150 ["web-2/12","GET /badges"]

Under one head a record only ever grows, so head and length together name one
state of it: that is its version. The record alone would not do: a holder that
extends its lease swaps the record for the same one, and a waiter that had read
it before, as lapsed, would not notice.

The server's clock is a wall clock. So that a small step of it takes no lease
away, a record counts as lapsed a second later than asked for.

Limits are those of one Redis. A record that was not yet replicated is gone
after a fail-over; a server with `maxmemory` and an `allkeys-…` policy may evict
it; a wall clock set forward by more than a second ends leases early. The lock
then does not exclude, and fencing at the Datastore commit refuses the loser's
write.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import redis

from userlock.lock.lease import NONCE_LENGTH
from userlock.lock.store import GRACE_SECONDS, MAX_RECORD_BYTES, Stored
from userlock.stores.keys import check_prefix, hashed
from userlock.stores.pool import CONNECT_TIMEOUT, REPLY_TIMEOUT
from userlock.stores.redis.connections import Command, Connection, Connections, integer
from userlock.stores.redis.wake_ups import RedisWakeUps
from userlock.stores.stream import number
from userlock.stores.verbs import WaitingStore

_Answer = TypeVar("_Answer")

#: Longer ids are hashed. Redis takes keys of 512 MB, and sends them all for a list of its locks.
MOST_ID_BYTES = 1000
#: By how much the server's clock may be ahead of time before a lease ends early.
_SLACK_SECONDS = 1.0
_HEAD_LENGTH = 18
#: The longest value that holds a record. Redis itself takes 512 MB.
_MOST_BYTES = MAX_RECORD_BYTES + _HEAD_LENGTH
#: The longest value that goes with a wake-up, so that the waiter need not read it.
_MOST_NEWS = 65_536


class Script:
    """A script of one key."""

    def __init__(self, body: str) -> None:
        self.body = body.encode()
        self.sha = hashlib.sha1(self.body, usedforsecurity=False).hexdigest().encode()

    async def run(self, connection: Connection, key: bytes, *args: bytes, replicas: int = 0) -> Any:
        """Run it; return the reply. The script itself is sent only if the server lacks it."""
        try:
            return await connection.call(b"EVALSHA", self.sha, b"1", key, *args, replicas=replicas)
        except redis.exceptions.NoScriptError:  # so it was not carried out
            connection.begin()
            return await connection.call(b"EVAL", self.body, b"1", key, *args, replicas=replicas)


# KEYS[1]: the record, with its head. ARGV: a version, as its head and its length.
# Another program's value may have 512 MB: its length is compared before it is read.
_COMPARE = """
local size = redis.call('strlen', KEYS[1])
if size ~= tonumber(ARGV[2]) then return 0 end
if size == 0 and redis.call('exists', KEYS[1]) == 0 then return 0 end
if redis.call('getrange', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return 0 end
"""
# The time to live, and the value behind it. Of one that is longer than any record only the head and
# the length.
_GET = f"""
local size = redis.call('strlen', KEYS[1])
if size > {_MOST_BYTES} then
    return {{redis.call('getrange', KEYS[1], 0, {_HEAD_LENGTH - 1}), size}}
end
local found = redis.call('get', KEYS[1])
return found and redis.call('pttl', KEYS[1]) .. ' ' .. found
"""
_READ = Script(_GET)
_SWAP = Script(
    f"""{_COMPARE}
redis.call('set', KEYS[1], ARGV[3], 'px', ARGV[4])
return 1
"""
)
# Waiters that have queued since stay behind it (`userlock.lock.record`); any other line refuses.
_TAKE_OVER = Script(
    f"""
local size = redis.call('strlen', KEYS[1])
if size < tonumber(ARGV[2]) or size > {_MOST_BYTES} then return 0 end
if redis.call('getrange', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then return 0 end
local later = redis.call('getrange', KEYS[1], ARGV[2], -1)
if later:gsub('\\n%+[^\\n]*', '') ~= '' or #ARGV[3] + #later > {_MOST_BYTES} then return 0 end
redis.call('set', KEYS[1], ARGV[3] .. later, 'px', ARGV[4])
return 1
"""
)
_REMOVE = Script(f"{_COMPARE} return redis.call('del', KEYS[1])")
_ADD = f"""
if redis.call('exists', KEYS[1]) == 0 then return false end
if redis.call('strlen', KEYS[1]) + #ARGV[1] <= {_MOST_BYTES} then
    redis.call('append', KEYS[1], ARGV[1])
end
"""
_APPEND = Script(_ADD + _GET)
# ARGV[2]: begins the names of channels. The first waiter is found as `userlock.lock.record` orders
# them, but for those that queue again (~) by time: they poll. Without the right to publish, too.
_WAKE = Script(
    f"""
local function append() {_ADD + _GET} end
local found = append()
if type(found) ~= 'string' then return found end
local function marked(mark)
    local tokens, at = {{}}, found:find(mark, 1, true)
    while at do
        tokens[found:match('^%S*', at + #mark)] = true
        at = found:find(mark, at + 1, true)
    end
    return tokens
end
local earliest, first, gone, aged = nil, nil, marked('\\n= '), marked('\\n^ ')
for rank, token in found:gmatch('\\n[+~]([ib]) (%S+)') do
    if not gone[token] then
        earliest = earliest or token
        if aged[token] then first = earliest break end
        if rank == 'i' then
            first = first or token
            if not next(aged) then break end
        end
    end
end
first = first or earliest
if first then
    local news = first .. ' '
    if #found <= {_MOST_NEWS} then news = news .. found end
    redis.pcall('publish', ARGV[2] .. first:sub(1, {NONCE_LENGTH}), news)
end
return found
"""
)


def fence_script(also: str = "") -> Script:
    """Return the script that appends, and replies with the time, what else there is, the record."""
    read = f"local function read() {_GET} end"
    return Script(f"{_ADD} {read} return {{redis.call('time'), {also} read()}}")


_FENCE = fence_script()


class RedisStore(WaitingStore):
    """A lease store in one Redis. Thread-safe; survives fork.

    Args:
        client: a `redis.Redis` of one server or of Sentinel's, not of a cluster. Only its way to
            connect is used (address, database, credentials, TLS, Sentinel), without its time-outs
            and retries: a command that was sent again could undo a change made in between. (A
            Sentinel is asked where the master is by the time-outs of its own client.)
        prefix: begins every key, so that deployments can share a server. 1 to 80 printable ASCII
            characters without `=` and `#`.
        connect_timeout: in seconds.
        timeout: for a reply, in seconds.
        wakes: whether a release wakes the next waiter, by a message that Redis passes on; otherwise
            waiters poll, as they do without the right to subscribe and publish.
        wait_replicas: how many replicas must have a lease that is taken or extended; if they have
            it not within half of `timeout`, the store counts as unavailable.

    Every verb takes one round trip (two after a restart, which forgets scripts). A string of
    another program under our key is returned as it is; something else is `StoreUnavailable`.
    """

    fences = True

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "userlock",
        connect_timeout: float = CONNECT_TIMEOUT,
        timeout: float = REPLY_TIMEOUT,
        wakes: bool = True,
        wait_replicas: int = 0,
    ) -> None:
        if not hasattr(client, "connection_pool"):
            raise TypeError(
                f"leases need one Redis, not a {type(client).__name__}. To fix it: hand in a "
                f"redis.Redis of one server, or name the cluster by redis+cluster://"
            )
        self.prefix = check_prefix(prefix)
        self.space = f"{prefix}:lock".encode()
        self._connect(client.connection_pool, connect_timeout, timeout)
        self._replicas = wait_replicas
        self._channel = f"{prefix}:wake:".encode()
        if wakes:
            self.wake_ups = RedisWakeUps(self.connections.apart, self._channel, stored)

    def _connect(self, pool: Any, connect_timeout: float, timeout: float) -> None:
        self.connections = Connections(pool, connect_timeout=connect_timeout, timeout=timeout)

    async def acreate(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        value, version = _fresh(record)
        # A create is read back after a break, so a dead connection does no harm.
        created = await self.connections.exchange(
            False, _create, self.key(lock_id), self._replicas, value, _lifetime(ttl_seconds)
        )
        return version if created else None

    async def aread(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        key = self.key(lock_id)
        return await self.connections.ask_to_read(hurry, _ran, key, stored, _READ, 0)

    async def aswap(
        self, lock_id: str, version: Any, record: bytes, ttl_seconds: float
    ) -> object | None:
        return await self._change(_SWAP, lock_id, version, record, ttl_seconds)

    async def atake_over(
        self, lock_id: str, version: Any, record: bytes, ttl_seconds: float
    ) -> object | None:
        return await self._change(_TAKE_OVER, lock_id, version, record, ttl_seconds)

    async def _change(
        self, script: Script, lock_id: str, version: Any, record: bytes, ttl_seconds: float
    ) -> object | None:
        value, new = _fresh(record)
        args = (*version, value, _lifetime(ttl_seconds))
        done = await self._run(True, lock_id, _done, script, self._replicas, *args)
        return new if done else None

    async def aremove(self, lock_id: str, version: Any) -> bool:
        return await self._run(True, lock_id, _done, _REMOVE, 0, *version)

    # An append is sent again after a break, so a dead connection does no harm.

    async def aappend(self, lock_id: str, line: bytes) -> Stored | None:
        return await self._run(False, lock_id, stored, _APPEND, 0, line)

    async def aappend_and_wake(self, lock_id: str, line: bytes) -> Stored | None:
        if self.wake_ups is None:
            return await self.aappend(lock_id, line)
        return await self._run(False, lock_id, stored, _WAKE, 0, line, self._channel)

    async def afence(self, lock_id: str, line: bytes) -> tuple[Stored, int] | None:
        """Append; the number is the server's time in microseconds."""
        return await self._run(True, lock_id, fenced, _FENCE, 0, line)

    async def _run(
        self,
        checked: bool,
        lock_id: str,
        answer: Callable[[Any], _Answer],
        script: Script,
        replicas: int,
        *args: bytes,
    ) -> _Answer:
        return await self.connections.exchange(
            checked, _ran, self.key(lock_id), answer, script, replicas, *args
        )

    def close(self) -> None:
        self.connections.drop_idle()
        if isinstance(self.wake_ups, RedisWakeUps):
            self.wake_ups.close()

    def key(self, lock_id: str) -> bytes:
        """Return the key of the record of `lock_id`."""
        # Lone surrogates have bytes of their own in this way.
        name = lock_id.encode("utf-8", "surrogatepass")
        if len(name) > MOST_ID_BYTES:
            return self._hashed(lock_id)
        return self.space + b"=" + name

    def _hashed(self, lock_id: str) -> bytes:
        return self.space + b"#" + hashed(lock_id).encode()


async def _create(
    connection: Connection, key: bytes, replicas: int, value: bytes, lifetime: bytes
) -> bool:
    reply = await connection.call(b"SET", key, value, b"NX", b"PX", lifetime, replicas=replicas)
    return _done(reply, b"OK", None)


async def _ran(
    connection: Connection,
    key: bytes,
    answer: Callable[[Any], _Answer],
    script: Script,
    replicas: int,
    *args: bytes,
) -> _Answer:
    # The answer here, not by the caller: a reply that is none closes the connection.
    return answer(await script.run(connection, key, *args, replicas=replicas))


def fenced(reply: Any) -> tuple[Stored, int] | None:
    """Return the record and the server's time, as the script replies with them."""
    match reply:
        case None:
            return None
        case [[bytes(seconds), bytes(fraction)], (bytes() | list()) as record]:
            found = stored(record)
            assert found is not None
            return found, number(seconds) * 10**6 + number(fraction)
        case reply:
            raise _odd(reply)


def read_commands(keys: Sequence[bytes]) -> list[Command]:
    """Return the commands that read records, for one packet; `stored` takes their replies."""
    # With the first one comes the script, so that the others need only name it.
    return [
        (b"EVALSHA", _READ.sha, b"1", key) if number else (b"EVAL", _READ.body, b"1", key)
        for number, key in enumerate(keys)
    ]


def _fresh(record: bytes) -> tuple[bytes, tuple[bytes, bytes]]:
    """Return the value to store for a record, and its version: the head, and the length of all."""
    head = b"#%b\n" % base64.b64encode(os.urandom(12))
    return head + record, (head, b"%d" % (len(head) + len(record)))


def _lifetime(ttl_seconds: float) -> bytes:
    """Return how long to keep a record, in milliseconds."""
    return b"%d" % math.ceil((ttl_seconds + _SLACK_SECONDS + GRACE_SECONDS) * 1000)


def _done(reply: Any, yes: object = 1, no: object = 0) -> bool:
    if reply not in (yes, no):
        raise _odd(reply)
    return bool(reply == yes)


def stored(reply: Any) -> Stored | None:
    """Return the record in a reply of `_READ`."""
    match reply:
        case None:
            return None
        case bytes():
            left, _, value = reply.partition(b" ")
        case [bytes(head), int(length)]:
            return Stored(b"", (head, b"%d" % length), lapsed=False)
        case _:
            raise _odd(reply)
    milliseconds, head = integer(left), value[:_HEAD_LENGTH]
    if len(head) < _HEAD_LENGTH or not (head.startswith(b"#") and head.endswith(b"\n")):
        # Another program wrote it. Only the whole of it tells its state.
        return Stored(value, (value, b"%d" % len(value)), lapsed=False)
    version, record = (head, b"%d" % len(value)), value[_HEAD_LENGTH:]
    if milliseconds < 0:  # somebody took the time to live off it
        return Stored(record, version, lapsed=False)
    seconds = milliseconds / 1000 - GRACE_SECONDS
    return Stored(record, version, seconds <= 0, seconds)


def _odd(reply: Any) -> redis.InvalidResponse:
    return redis.InvalidResponse(f"it answered {reply!r:.80}, which is no reply of Redis")
