"""Connections to one Redis server: redis-py makes them, and we use and pool them.

redis-py authenticates, knows TLS, and finds a Sentinel's primary. Its parsers have no deadline and
no bound: they read what a server announces, be it 300 MB or 10,000 lists within each other. Its
pools do not tell whether a command was sent before something went wrong; a look-up of the server's
name may hang in them; they give no fresh connection with another time-out.

Source of the replies (RESP2): https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.connection import DefaultParser
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider
from redis.retry import Retry

from userlock.lock.store import RecordRefused, StoreUnavailable
from userlock.stores.address import Address, joined
from userlock.stores.pool import NotHere, Pool
from userlock.stores.stream import MOST_BYTES, Place, Refused, Stream, number, words
from userlock.stores.timed_calls import TimedCall, TooLate
from userlock.waits import run

#: Errors for a server that is in trouble, or is no Redis; the last two in redis-py's handshake.
TROUBLE = (redis.RedisError, OSError, Refused, ValueError, TypeError)
#: The server's own answer that it does not carry a command out.
ErrorReply = redis.ResponseError
Command = Sequence[bytes]

#: In the server's own answers to a command whose key holds something else, or too much.
_OF_ONE_RECORD = ("WRONGTYPE", "string exceeds maximum allowed size")
#: The errors of a node of a cluster, which older releases of redis-py know in such a client only.
_OF_A_CLUSTER: Mapping[str, type[redis.RedisError]] = {
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "MOVED": exceptions.MovedError,
}
#: Lists within lists: CLUSTER SLOTS replies with slots, their nodes, and what is known of a node.
_MOST_DEPTH = 4
#: The shortest reply: a sign and a line end.
_LEAST_BYTES = 3
_PARSER: Any = DefaultParser
#: The commands that errors may name.
_COMMANDS = frozenset(
    (
        *("auth", "hello", "select", "client", "client|setname"),
        *("eval", "evalsha", "get", "set", "strlen", "scan", "info"),
    )
)
#: The first text in quotes. The apostrophe in "You can't write" begins none.
_QUOTED = re.compile(r"""(?<!\w)(['"`])([^'"`]*)""")

#: Options without which redis-py reads its package's metadata for each new connection, to send the
#: server its name and version.
_PARAMETERS = inspect.signature(redis.connection.AbstractConnection.__init__).parameters
_NAMES = ("driver_info",) if "driver_info" in _PARAMETERS else ("lib_name", "lib_version")
#: For the answer of a credential provider, in seconds: that of a platform takes 0.05 s.
_CREDENTIALS_TIMEOUT = 1.0
#: Options of a client for notifications that come without a question.
_NOTIFICATIONS = ("maint_notifications_config", "maint_notifications_pool_handler")


class TooFewReplicas(redis.ResponseError):
    """A change was made that too few replicas have. So one that fails over may not know it."""


def packed(command: Command) -> bytes:
    parts = [b"$%d\r\n%b\r\n" % (len(each), each) for each in command]
    return b"*%d\r\n" % len(parts) + b"".join(parts)


def integer(text: bytes) -> int:
    """Return a whole number; `Refused` for anything else."""
    return -number(text[1:]) if text[:1] == b"-" else number(text)


class Connection(Stream):
    """One connection of redis-py's, which stands."""

    #: A node from which a slot just moves to this one: each packet begins with ASKING.
    asking: object = None
    #: The server that it leads to, and the latest one that Sentinels have named, if they do.
    primary: object = None
    latest: SimpleNamespace | None = None

    def __init__(self, raw: Any, timeout: float) -> None:
        super().__init__(raw._sock, timeout)
        self._raw = raw

    def close(self) -> None:
        super().close()
        self._raw.disconnect()

    async def call(self, *command: bytes, replicas: int = 0) -> Any:
        """Return the reply to one command, whose change so many replicas must have in time."""
        wait = [(b"WAIT", b"%d" % replicas, b"%d" % (self._timeout * 500))] if replicas else []
        reply, *counts = await self.call_all([command, *wait])
        if isinstance(reply, redis.RedisError):
            raise reply
        if counts and reply and not (isinstance(counts[0], int) and counts[0] >= replicas):
            raise TooFewReplicas(f"{counts[0]!r:.80} of {replicas} replicas have the lease")
        return reply

    async def call_all(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one packet; return the reply, or Redis's error, to each."""
        # After a planned fail-over the former primary goes on for some seconds, by itself.
        if self.latest is not None and self.latest.primary != self.primary:
            raise NotHere("it leads to a primary that was replaced", sent=False)
        if self.asking is not None:
            commands = [(b"ASKING",), *commands]
        await self.send(b"".join(map(packed, commands)))
        replies = []
        for _ in commands:
            reply = await self.reply()
            if isinstance(reply, redis.ConnectionError):  # not to this one alone
                raise reply
            replies.append(reply)
        if self._buffer:
            self.finish()
        return replies if self.asking is None else replies[1:]

    async def reply(self, depth: int = _MOST_DEPTH) -> Any:
        """Return the next reply: bytes, an int, None, a list of replies, or Redis's error."""
        line = await self.read_line()
        sign, rest = line[:1], line[1:]
        if sign == b"$" and rest != b"-1":
            return await self.read_block(number(rest))
        if sign == b":":
            return integer(rest)
        if sign == b"+":
            return rest
        if rest == b"-1" and sign in (b"$", b"*"):
            return None
        if sign == b"*" and depth:
            count = number(rest)
            if count > MOST_BYTES // _LEAST_BYTES:
                raise Refused(f"it announced {count:,} replies in one")
            return [await self.reply(depth - 1) for _ in range(count)]
        if sign == b"-":
            return _error(rest.decode("utf-8", "replace"))
        raise Refused(f"it answered {words(line)}, which is no reply of Redis")


def _error(text: str) -> Any:
    """Return Redis's error without the arguments that it repeats: a password, or a lock id.

    They are in quotes: "unknown command 'AUTH', with args beginning with: 'secret'".
    """
    quoted = _QUOTED.search(text)
    if quoted is not None:
        named = repr(quoted[2]) if quoted[2].lower() in _COMMANDS else ""
        text = f"{text[: quoted.start()]}{named}…"
    code, _, rest = text.partition(" ")
    of_a_cluster = _OF_A_CLUSTER.get(code)
    return _PARSER.parse_error(text) if of_a_cluster is None else of_a_cluster(rest)


class _Handshake:
    """The parser of redis-py's handshake, which so has our deadline and bound."""

    connection: Connection | None = None

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    def on_connect(self, raw: Any) -> None:
        self.connection = Connection(raw, self._timeout)

    def on_disconnect(self) -> None:
        """Do nothing: `Connection.close` does it."""

    def read_response(self, disable_decoding: bool = False, **_: object) -> Any:
        assert self.connection is not None, "redis-py reads before it is connected"
        reply = run(self.connection.reply)
        if isinstance(reply, redis.ConnectionError):  # as redis-py's parsers do
            raise reply
        return reply


class Connections(Pool[Connection]):
    """The connections of this process to one server.

    Of a redis-py pool the kind of connection and their options are used, but for those of time. It
    is kept, because Sentinel's connections ask it where the master is.
    """

    trouble = TROUBLE
    breaks = (redis.ConnectionError, ConnectionError)
    #: Whether any of the addresses of a name will do.
    any_address = False

    def __init__(self, pool: Any, *, connect_timeout: float, timeout: float) -> None:
        super().__init__()
        self._pool = pool
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        given = pool.connection_kwargs
        self._options: dict[str, Any] = {
            **{name: given[name] for name in given if name not in _NOTIFICATIONS},
            **dict.fromkeys(_NAMES),
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "socket_connect_timeout": connect_timeout,
            "protocol": 2,  # one round trip less for a new connection
        }
        provider = self._options.get("credential_provider")
        self._provider: TimedCall[Any] | None = None
        if provider is not None:
            ask = provider.get_credentials
            self._provider = TimedCall(ask, "userlock-credentials", "the credential provider")
        host = self._options.get("host")
        self._address = Address(host, int(self._options.get("port", 6379))) if host else None
        if self._address:
            self.name = joined(self._address.host, self._address.port)
        else:  # a socket in the file system, or a service that Sentinel knows
            self.name = str(self._options.get("path") or getattr(pool, "service_name", "?"))
            self._latest = SimpleNamespace()
        self._raw(timeout)  # not connected: for its options

    def _raw(self, timeout: float, **options: Any) -> tuple[Any, _Handshake]:
        handshake = _Handshake(timeout)
        options |= {"socket_timeout": timeout, "parser_class": lambda **_: handshake}
        return self._pool.connection_class(**{**self._options, **options}), handshake

    async def connect(self, timeout: float | None) -> Connection:
        options: dict[str, Any] = {}
        if self._address is not None:
            # Those over TLS need the name, for the certificate, and look it up again; then
            # redis-py tries all its addresses.
            host = await self._address.resolve(self._connect_timeout)
            if self._pool.connection_class is redis.Connection and not self.any_address:
                options["host"] = host
        if self._provider is not None:  # asked now: the connection has its deadline for itself
            options["credential_provider"] = await self._credentials(self._provider)
        raw, handshake = self._raw(self._timeout if timeout is None else timeout, **options)
        try:
            raw.connect()
            if handshake.connection is None:
                raise redis.ConnectionError("redis_connect_func must call on_connect")
            handshake.connection.finish()
            if self._address is None:
                self._latest.primary = handshake.connection.primary = raw._sock.getpeername()
                handshake.connection.latest = self._latest
        except BaseException:
            raw.disconnect()
            raise
        return handshake.connection

    async def _credentials(self, provider: TimedCall[Any]) -> CredentialProvider:
        """Return a provider of the credentials that the client's gives now."""
        try:
            *user, password = await provider.result(_CREDENTIALS_TIMEOUT)
        except redis.RedisError:
            raise
        except TooLate as error:
            raise redis.AuthenticationError(str(error)) from None
        except Exception as error:  # it is the app's: its words may have a secret
            raise redis.AuthenticationError(
                f"the credential provider failed ({type(error).__name__})"
            ) from error
        return UsernamePasswordCredentialProvider(user[0] if user else None, password)

    async def apart(self) -> Connection:
        """Return a connection that is in no pool, in a task by a thread that makes it."""
        return await self._connected(Place())

    def unavailable(self, error: BaseException, *, sent: bool) -> StoreUnavailable:
        slow = sent and isinstance(error, redis.TimeoutError | TimeoutError)
        what = str(error) or type(error).__name__
        if isinstance(error, exceptions.AskError | exceptions.ClusterDownError):  # MOVED is an ASK
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
