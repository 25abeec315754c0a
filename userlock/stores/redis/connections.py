"""Connections to one Redis server: redis-py's, in a pool of our own.

redis-py makes a connection and authenticates. Its pools lack
four things: they do not tell whether a command was sent before something went
wrong, a look-up of the server's name may hang in them, they give no fresh
connection with another time-out, and their treatment of stale connections
depends on their version. Its parsers have no deadline and no bound (`replies`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from userlock.lock.store import RecordRefused, StoreUnavailable
from userlock.stores.address import Address
from userlock.stores.pool import Place, Pool
from userlock.stores.redis.credentials import fetched
from userlock.stores.redis.replies import Replies
from userlock.stores.stream import Refused, Stream

#: Errors for a server that is in trouble, or is no Redis; the last two in redis-py's handshake.
TROUBLE = (redis.RedisError, OSError, Refused, ValueError, TypeError)
#: The server's own answer that it does not carry a command out.
ErrorReply = redis.ResponseError

#: In the server's own answers to a command whose key holds something else, or too much.
_OF_ONE_RECORD = ("WRONGTYPE", "string exceeds maximum allowed size")

Command = Sequence[bytes | str | int]


#: Options without which redis-py reads its package's metadata for each new connection, to send the
#: server its name and version.
_PARAMETERS = inspect.signature(redis.connection.AbstractConnection.__init__).parameters
_ANONYMOUS = {
    name: None
    for name in (("driver_info",) if "driver_info" in _PARAMETERS else ("lib_name", "lib_version"))
    if name in _PARAMETERS
}

#: Options of a client for notifications that come without a question.
_NOTIFICATIONS = ("maint_notifications_config", "maint_notifications_pool_handler")


def packed(command: Command) -> bytes:
    """Return a command as it is sent."""
    wire = [b"*%d\r\n" % len(command)]
    for part in command:
        if isinstance(part, int):
            part = b"%d" % part
        elif isinstance(part, str):
            part = part.encode()
        wire.append(b"$%d\r\n%b\r\n" % (len(part), part))
    return b"".join(wire)


_OF_A_CLUSTER = (
    redis.exceptions.MovedError,
    redis.exceptions.AskError,
    redis.exceptions.ClusterDownError,
)


class TooFewReplicas(redis.ResponseError):
    """A change was made that too few replicas have. So one that fails over may not know it."""


class Connection:
    """One connection of redis-py's, which stands. Used by one caller at a time."""

    def __init__(self, raw: Any, replies: Replies, stream: Stream) -> None:
        self._raw = raw
        self._replies = replies
        self._stream = stream
        self.begin = stream.begin
        self.stale = stream.stale
        self.place: Place | None = None

    def close(self) -> None:
        """Close it. It cannot be used again."""
        self._raw.disconnect()

    async def ask(self, *command: bytes | str | int) -> Any:
        """Return the reply to one command; raise Redis's error."""
        await self._stream.send(packed(command))
        reply = await self._replies.read(self._stream)
        self._stream.finish()
        if isinstance(reply, redis.RedisError):
            raise reply
        return reply

    # --- as a subscriber --------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the file number, for `select`."""
        return self._stream.fileno()

    @property
    def buffered(self) -> bool:
        """Return whether there are bytes that `select` does not see any more."""
        return self._stream.buffered

    async def send(self, *command: bytes | str | int) -> None:
        """Send a command without waiting for the reply."""
        await self._stream.send(packed(command))

    async def hear(self) -> Any:
        """Return the next message as bytes, or another reply."""
        match await self._replies.read(self._stream):
            case [b"message" | b"smessage", _, bytes(payload)]:
                return payload
            case reply:
                return reply

    # --- of a pool --------------------------------------------------------------------------

    async def ask_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one packet; return the reply, or Redis's error, to each."""
        await self._stream.send(b"".join(map(packed, commands)))
        replies = []
        for _ in commands:
            reply = await self._replies.read(self._stream)
            if isinstance(reply, redis.ConnectionError):  # not to this one alone
                raise reply
            replies.append(reply)
        self._stream.finish()
        return replies


class Connections(Pool[Connection]):
    """The connections of this process to one server.

    Args:
        pool: a redis-py pool. Its kind of connection and their options are used, but for those
            of time; it is kept, because Sentinel's connections ask it where the master is.
        connect_timeout: in seconds.
        timeout: for an exchange, in seconds.

    Attributes:
        name: the server's, for messages.
    """

    trouble = TROUBLE

    def __init__(
        self,
        pool: Any,
        *,
        connect_timeout: float,
        timeout: float,
    ) -> None:
        super().__init__()
        self._pool = pool
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        given = pool.connection_kwargs
        self._options: dict[str, Any] = {
            **{name: given[name] for name in given if name not in _NOTIFICATIONS},
            **_ANONYMOUS,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "socket_connect_timeout": connect_timeout,
            "protocol": 2,  # one round trip less for a new connection
        }
        host = self._options.get("host")
        self._address = Address(host, int(self._options.get("port", 6379))) if host else None
        if self._address:
            self.name = f"{self._address.host}:{self._address.port}"
        else:  # a socket in the file system, or a service that Sentinel knows
            self.name = str(self._options.get("path") or getattr(pool, "service_name", "?"))
        self._make_raw(timeout)  # not connected: for its options

    def _make_raw(self, timeout: float, **options: Any) -> tuple[Any, Replies]:
        replies = Replies(timeout)
        options |= {"socket_timeout": timeout, "parser_class": lambda **_: replies}
        return self._pool.connection_class(**{**self._options, **options}), replies

    async def connect(self, timeout: float | None) -> Connection:
        options: dict[str, Any] = {}
        if self._address is not None:
            # Those over TLS need the name, for the certificate, and look it up again.
            host = self._address.resolve(self._connect_timeout)
            if self._pool.connection_class is redis.Connection:
                options["host"] = host
        provider = self._options.get("credential_provider")
        if provider is not None:
            options["credential_provider"] = fetched(provider)
        raw, replies = self._make_raw(self._timeout if timeout is None else timeout, **options)
        try:
            raw.connect()
            if replies.stream is None:
                raise redis.ConnectionError("redis_connect_func must call on_connect")
            replies.stream.finish()
        except BaseException:
            raw.disconnect()
            raise
        return Connection(raw, replies, replies.stream)

    async def apart(self) -> Connection:
        """Return a connection that is in no pool, in a task by a thread that makes it."""
        return await self._connected(Place())

    def is_a_break(self, error: BaseException) -> bool:
        return isinstance(error, redis.ConnectionError | ConnectionError)

    def unavailable(self, error: BaseException, *, sent: bool) -> StoreUnavailable:
        slow = sent and isinstance(error, redis.TimeoutError | TimeoutError)
        what = str(error) or type(error).__name__
        if isinstance(error, _OF_A_CLUSTER):
            what = (
                "it is one node of a cluster, and answered that the key is another node's. To fix "
                "it: name the cluster by redis+cluster:// (TLS: rediss+cluster://)"
            )
        # Before Redis 7 a script's error has words of the script's before it.
        if isinstance(error, ErrorReply) and any(each in what for each in _OF_ONE_RECORD):
            return RecordRefused(
                f"redis at {self.name}: something other than a record stands under the key "
                f"({what:.100}); is the prefix ours alone?"
            )
        trouble = StoreUnavailable(f"redis at {self.name}: {what}", sent=sent, slow=slow)
        trouble.known = isinstance(error, TooFewReplicas)
        return trouble
