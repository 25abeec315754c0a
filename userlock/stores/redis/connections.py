"""Connections to one Redis server: redis-py's, in a pool of our own.

redis-py's pools lack four things: they do not tell whether a command was sent
before something went wrong, a look-up of the server's name may hang in them,
they give no fresh connection with another time-out, and their treatment of
stale connections depends on their version.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from userlock.lock.store import RecordRefused, StoreUnavailable
from userlock.stores.address import Address
from userlock.stores.connection_limit import Place
from userlock.stores.pool import CONNECT_TIMEOUT, Pool

#: redis-py's errors for a server that is in trouble, or is no Redis.
TROUBLE = (redis.RedisError, OSError, ValueError, IndexError)
#: The server's own answer that it does not carry a command out.
ErrorReply = redis.ResponseError

#: In the server's own answers to a command whose key holds something else, or too much.
_OF_ONE_RECORD = ("WRONGTYPE", "string exceeds maximum allowed size")

Command = Sequence[bytes | str | int]


class Connection:
    """One connection of redis-py's, which stands. Used by one thread at a time."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.place: Place | None = None

    @property
    def stale(self) -> bool:
        """Return whether it is readable; as `pool.Connection.stale`."""
        try:
            return bool(self._raw.can_read(0))
        except TROUBLE:
            return True

    def close(self) -> None:
        """Close it. It cannot be used again."""
        self._raw.disconnect()

    def ask(self, *command: bytes | str | int) -> Any:
        """Return the reply to one command."""
        self._raw.send_command(*command)
        return self._read()

    def ask_each(self, commands: Sequence[Command]) -> Iterator[Any]:
        """Send commands in one packet; return the reply, or Redis's error, to each."""
        self._raw.send_packed_command([b"".join(self._raw.pack_commands(commands))])
        for _ in commands:
            try:
                yield self._read()
            except ErrorReply as error:  # the reply to this one alone
                yield error

    def _read(self) -> Any:
        return self._raw.read_response(disable_decoding=True)


class Connections(Pool[Connection]):
    """The connections of this process to one server.

    Args:
        pool: a redis-py pool. Its kind of connection and their options are used; it is kept,
            because Sentinel's connections ask it where the master is.
        most: how many there may be.

    Attributes:
        name: the server's, for messages.
    """

    trouble = TROUBLE

    def __init__(self, pool: Any, *, most: int = 32) -> None:
        self._pool = pool
        self._options: dict[str, Any] = {
            **pool.connection_kwargs,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
        }
        super().__init__(most=most)
        host = self._options.get("host")
        self._address = Address(host, int(self._options.get("port", 6379))) if host else None
        if self._address:
            self.name = f"{self._address.host}:{self._address.port}"
        else:  # a socket in the file system, or a service that Sentinel knows
            self.name = str(self._options.get("path") or getattr(pool, "service_name", "?"))
        self._make_raw()  # not connected: for its options

    def _make_raw(self, **options: Any) -> Any:
        return self._pool.connection_class(**{**self._options, **options})

    def connect(self, timeout: float | None) -> Connection:
        options: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        if self._address is not None:
            # Those over TLS need the name, for the certificate, and look it up again.
            host = self._address.resolve(
                self._options.get("socket_connect_timeout") or CONNECT_TIMEOUT
            )
            if self._pool.connection_class is redis.Connection:
                options["host"] = host
        raw = self._make_raw(**options)
        try:
            raw.connect()
        except BaseException:
            raw.disconnect()
            raise
        return Connection(raw)

    def is_a_break(self, error: BaseException) -> bool:
        return isinstance(error, redis.ConnectionError | ConnectionError)

    def unavailable(self, error: BaseException, *, sent: bool) -> StoreUnavailable:
        slow = sent and isinstance(error, redis.TimeoutError | TimeoutError)
        what = str(error) or type(error).__name__
        # Before Redis 7 a script's error has words of the script's before it.
        if isinstance(error, ErrorReply) and any(each in what for each in _OF_ONE_RECORD):
            return RecordRefused(
                f"redis at {self.name}: something other than a record stands under the key "
                f"({what:.100}); is the prefix ours alone?"
            )
        return StoreUnavailable(f"redis at {self.name}: {what}", sent=sent, slow=slow)
