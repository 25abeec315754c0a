"""Leases in Redis (extra `redis`): one command or script a verb, one round trip each.

    create   SET … NX PX                   swap     get, compare, SET … PX
    read     GET and PTTL                  remove   get, compare, DEL
                                           append   EXISTS, APPEND, GET and PTTL

A script runs alone, so each is atomic. A record is stored behind a head, a
line of its own that is drawn at random when it is created or swapped:

    #kZ0x3v9TqY1bW5uD
    ["4f01","interactive",1763640000.123,60.0,"web-1/77","POST /answers"]
    +i 4f02 1763640000.150 ["web-2/12","GET /badges"]

Under one head a record only ever grows, so head and length together name one
state of it: that is its version. The record alone would not do: a holder that
extends its lease swaps the record for the same one, and a waiter who read it
before, as lapsed, would not notice.

Time to live. The server's clock is a wall clock: Redis keeps the moment at
which a key expires, counted from when it carries the command out, also after it
was stopped. So that a small step of that clock takes no lease away, a record
counts as lapsed a second later than asked for.

Limits are those of one Redis. A record that was written and not yet
replicated is gone after a fail-over; a server with `maxmemory` and an
`allkeys-…` policy may evict it; a wall clock set forward by more than a second
ends leases early. The lock then does not exclude, and fencing at the Datastore
commit is what refuses the loser's write.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import redis

from userlock.lock.store import GRACE_SECONDS, Stored, StoreUnavailable, Swap
from userlock.stores.redis.connections import (
    CONNECT_TIMEOUT,
    REPLY_TIMEOUT,
    TROUBLE,
    Connections,
)
from userlock.stores.redis.operators import ForOperators
from userlock.stores.redis.url import parse_url

#: By how much the server's clock may be ahead of time before a lease ends early.
_SLACK_SECONDS = 1.0


class _Script(NamedTuple):
    body: bytes
    sha: str

    @classmethod
    def of(cls, body: str) -> _Script:
        encoded = body.encode()
        return cls(encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest())


# KEYS[1]: the record, with its head. ARGV: a version, as its head and its length.
_COMPARE = """
local found = redis.call('get', KEYS[1])
if not found or #found ~= tonumber(ARGV[2]) then return 0 end
if string.sub(found, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
"""
_READ = _Script.of("""
local found = redis.call('get', KEYS[1])
return found and {found, redis.call('pttl', KEYS[1])}
""")
_SWAP = _Script.of(
    _COMPARE
    + """
redis.call('set', KEYS[1], ARGV[3], 'px', ARGV[4])
return 1
"""
)
_REWRITE = _Script.of(
    _COMPARE
    + """
local left = redis.call('pttl', KEYS[1])
if left < 0 then return 0 end
redis.call('set', KEYS[1], ARGV[3], 'px', left + 1)
return 1
"""
)
_REMOVE = _Script.of(_COMPARE + "return redis.call('del', KEYS[1])")
_APPEND = _Script.of("""
if redis.call('exists', KEYS[1]) == 0 then return false end
redis.call('append', KEYS[1], ARGV[1])
return {redis.call('get', KEYS[1]), redis.call('pttl', KEYS[1])}
""")

_HEAD_LENGTH = 18

_Answer = TypeVar("_Answer")


class _Version(NamedTuple):
    """A state of a record: how what is stored begins, and how long it is."""

    head: bytes
    length: int


class RedisStore(ForOperators):
    """A lease store in one Redis. Thread-safe; survives fork.

    Args:
        client: a `redis.Redis`, with tight timeouts of its own; see `from_url`. Only its way to
            connect is used (address, database, password, TLS, Sentinel), on connections of the
            store's own: its pool and its retries are not, because a command that is sent again
            by itself could undo what was done in between.
        prefix: begins every key, so that deployments can share a server.

    Every verb takes one round trip (two after a restart of the server, which
    forgets scripts). Each raises `StoreUnavailable` for whatever goes wrong,
    redis-py's error as its cause: also where something other than a string
    stands under our key. A string that others wrote there is returned as it
    is.
    """

    def __init__(self, client: Any, *, prefix: str = "userlock") -> None:
        self._prefix = prefix
        self._connections = Connections(client.connection_pool)

    @classmethod
    def from_url(cls, url: str) -> RedisStore:
        """Return the store that `redis://[USER:PASSWORD@]HOST:PORT/DB?prefix=NAME` names.

        `rediss://…` is the same over TLS. Other options of the query go to
        redis-py, `socket_timeout` among them. Nothing is sent yet.

        Raises:
            ValueError: says what is wrong with the URL.
        """
        named = parse_url(url)
        try:
            client = redis.Redis.from_url(
                named.client_url,
                socket_connect_timeout=CONNECT_TIMEOUT,
                socket_timeout=REPLY_TIMEOUT,
                protocol=2,  # one round trip less for a new connection
            )
            store = cls(client, prefix=named.prefix)
            store._connections.make()  # an option that does not exist comes out here
        except (TypeError, ValueError, redis.RedisError) as error:
            raise ValueError(f"{named.shown!r}: {error}") from error
        return store

    # --- the verbs --------------------------------------------------------------------------

    def create(self, lock_id: str, record: bytes, ttl_seconds: float) -> object | None:
        value, version = _fresh(record)
        lifetime = _lifetime(ttl_seconds)
        done = self._ask(_created, "SET", self._key(lock_id), value, "NX", "PX", lifetime)
        return version if done else None

    def read(self, lock_id: str, *, hurry: bool = False) -> Stored | None:
        return self._ask(_stored, _READ, self._key(lock_id), again=not hurry, hurry=hurry)

    def swap(
        self, lock_id: str, version: object, record: bytes, ttl_seconds: float
    ) -> object | None:
        assert isinstance(version, _Version)
        value, new = _fresh(record)
        lifetime = _lifetime(ttl_seconds)
        done = self._ask(_done, _SWAP, self._key(lock_id), *version, value, lifetime)
        return new if done else None

    def swap_many(self, swaps: Sequence[Swap]) -> list[object | StoreUnavailable | None]:
        """As `BatchStore.swap_many`: one packet, each swap a script of its own."""
        outcomes: list[object | StoreUnavailable | None] = []
        sent, connection = False, None
        try:
            connection = self._connections.take(hurry=False)
            connection.connect()
            sent = True
            for outcome in self._swap_each(connection, swaps):
                outcomes.append(outcome)  # each by itself: those before a break are known
        except BaseException as error:
            self._broken(connection, error)
            trouble = self._unavailable(error, sent=sent)
            return outcomes + [trouble] * (len(swaps) - len(outcomes))
        if any(isinstance(outcome, StoreUnavailable) for outcome in outcomes):
            self._connections.close(connection)  # as after every error, see `_broken`
            self._connections.drop_idle()
        else:
            self._connections.give_back(connection)
        return outcomes

    def _swap_each(self, connection: Any, swaps: Sequence[Swap]) -> Iterator[object | None]:
        """Return the outcome of each, as the answers come."""
        commands: list[tuple[bytes | str | int, ...]] = []
        versions = []
        for lock_id, version, record, ttl_seconds in swaps:
            assert isinstance(version, _Version)
            value, new = _fresh(record)
            # With the first one comes the script, so that the others need only name it.
            script = ("EVALSHA", _SWAP.sha) if commands else ("EVAL", _SWAP.body)
            lifetime = _lifetime(ttl_seconds)
            commands.append((*script, 1, self._key(lock_id), *version, value, lifetime))
            versions.append(new)
        connection.send_packed_command([b"".join(connection.pack_commands(commands))])
        for new in versions:
            try:
                done = _done(connection.read_response(disable_decoding=True))
            except redis.ResponseError as error:  # the answer to this one alone
                yield self._unavailable(error, sent=True)
            else:
                yield new if done else None

    def rewrite(self, lock_id: str, version: object, record: bytes) -> object | None:
        """As `RewritingStore.rewrite`. (KEEPTTL would do, from Redis 6 on.)"""
        assert isinstance(version, _Version)
        value, new = _fresh(record)
        done = self._ask(_done, _REWRITE, self._key(lock_id), *version, value)
        return new if done else None

    def remove(self, lock_id: str, version: object) -> bool:
        assert isinstance(version, _Version)
        return self._ask(_done, _REMOVE, self._key(lock_id), *version)

    def append(self, lock_id: str, line: bytes) -> Stored | None:
        return self._ask(_stored, _APPEND, self._key(lock_id), line)

    def close(self) -> None:
        """Close the connections that stand idle. The store can still be used afterwards."""
        self._connections.drop_idle()

    # --- one command, and its reply ---------------------------------------------------------

    def _key(self, lock_id: str) -> bytes:
        # Lone surrogates have bytes of their own in this way.
        return f"{self._prefix}:lock={lock_id}".encode("utf-8", "surrogatepass")

    def _ask(
        self,
        understand: Callable[[Any], _Answer],
        what: str | _Script,
        key: bytes,
        *args: bytes | str | int,
        again: bool = False,
        hurry: bool = False,
    ) -> _Answer:
        """Return the answer to one command, or script, on one key.

        Args:
            understand: makes the answer of the reply.
            what: the name of the command, or the script.
            key, args: what follows.
            again: it may be sent once more if the connection breaks.
            hurry: see `LeaseStore.read`.
        """
        sent = False  # at any time: the first of two may yet have been carried out
        while True:
            connected, connection = False, None
            try:
                connection = self._connections.take(hurry=hurry)
                connection.connect()
                sent = connected = True
                answer = understand(_exchange(connection, what, key, *args))
            except BaseException as error:
                self._broken(connection, error)
                if not (again and connected and _is_a_break(error)):
                    raise self._unavailable(error, sent=sent) from error
                again = False
            else:
                if hurry:
                    self._connections.close(connection)
                else:
                    self._connections.give_back(connection)
                return answer

    def _broken(self, connection: Any, error: BaseException) -> None:
        """Close the connection after an error, and raise it if it was no trouble with the server.

        Whatever went wrong, KeyboardInterrupt included: a reply may still be on
        its way, and would be taken for the next command's. After an error that
        the server sent, too: READONLY is what a master says that is none any
        more, and a new connection may lead to the one that is.
        """
        if connection is not None:
            self._connections.close(connection)
        if not isinstance(error, TROUBLE):
            raise error
        self._connections.drop_idle()  # likely broken too

    def _unavailable(self, error: BaseException, *, sent: bool) -> StoreUnavailable:
        slow = sent and isinstance(error, redis.TimeoutError | TimeoutError)
        what = str(error) or type(error).__name__
        if what.startswith("WRONGTYPE"):
            what = "something other than a string stands under our key; is the prefix ours alone?"
        return StoreUnavailable(f"redis at {self._connections.name}: {what}", sent=sent, slow=slow)


def _exchange(connection: Any, what: str | _Script, key: bytes, *args: bytes | str | int) -> Any:
    if isinstance(what, str):
        connection.send_command(what, key, *args)
        return connection.read_response(disable_decoding=True)
    connection.send_command("EVALSHA", what.sha, 1, key, *args)
    try:
        return connection.read_response(disable_decoding=True)
    except redis.exceptions.NoScriptError:  # so it was not carried out
        connection.send_command("EVAL", what.body, 1, key, *args)
        return connection.read_response(disable_decoding=True)


def _is_a_break(error: BaseException) -> bool:
    """Return whether the connection broke, as it does when a server restarts."""
    return isinstance(error, redis.ConnectionError | ConnectionError)


# --- records as stored --------------------------------------------------------------------------


def _fresh(record: bytes) -> tuple[bytes, _Version]:
    """Return the value to store for a record, and the version that it will have."""
    head = b"#%b\n" % base64.b64encode(os.urandom(12))
    return head + record, _Version(head, len(head) + len(record))


def _lifetime(ttl_seconds: float) -> int:
    """For how long to keep a record, in milliseconds."""
    return math.ceil((ttl_seconds + _SLACK_SECONDS + GRACE_SECONDS) * 1000)


# --- what replies mean --------------------------------------------------------------------------


def _created(reply: Any) -> bool:
    if reply not in (b"OK", None):
        raise _odd(reply)
    return reply is not None


def _done(reply: Any) -> bool:
    if reply not in (0, 1):
        raise _odd(reply)
    return bool(reply)


def _stored(reply: Any) -> Stored | None:
    match reply:
        case None:
            return None
        case [bytes(value), int(left)]:
            head = value[:_HEAD_LENGTH]
        case _:
            raise _odd(reply)
    if len(head) < _HEAD_LENGTH or not (head.startswith(b"#") and head.endswith(b"\n")):
        # Others wrote it. Only the whole of it says what state it is in.
        return Stored(value, _Version(value, len(value)), lapsed=False)
    # -1: somebody took the time to live off it.
    lapsed = 0 <= left <= GRACE_SECONDS * 1000
    return Stored(value[_HEAD_LENGTH:], _Version(head, len(value)), lapsed)


def _odd(reply: Any) -> redis.InvalidResponse:
    return redis.InvalidResponse(f"it answered {reply!r:.80}, which Redis never does")
