"""Redis's replies (RESP2), read within the deadline and the bound of an exchange.

Given to redis-py as its parser, so that its handshake is bounded too. redis-py's
own reads what a server announces, be it 300 MB or 10,000 lists within each other.

Source: https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import redis
from redis import exceptions
from redis.connection import DefaultParser

from userlock.stores.stream import MOST_BYTES, Refused, Stream, number, words
from userlock.waits import run

_PARSER: Any = DefaultParser
#: The errors of a node of a cluster, which older releases of redis-py know in such a client only.
_OF_A_CLUSTER: Mapping[str, type[redis.RedisError]] = {
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "MOVED": exceptions.MovedError,
    "TRYAGAIN": exceptions.TryAgainError,
}
#: Lists within lists: CLUSTER SLOTS replies with slots, their nodes, and what is known of a node.
_MOST_DEPTH = 4
#: The shortest reply: a sign and a line end.
_LEAST_BYTES = 3


#: The commands that errors may name.
_COMMANDS = frozenset(
    ("auth", "hello", "select", "client", "eval", "evalsha", "get", "set", "strlen", "scan", "info")
)
#: The first text in quotes. The apostrophe in "You can't write" begins none.
_QUOTED = re.compile(r"""(?<!\w)(['"`])([^'"`]*)""")


def _without_arguments(error: str) -> str:
    """Return an error without the arguments that it repeats: a password, or a key with a lock id.

    They are in quotes: "unknown command 'AUTH', with args beginning with: 'secret'".
    """
    quoted = _QUOTED.search(error)
    if quoted is None:
        return error
    named = repr(quoted[2]) if quoted[2].lower() in _COMMANDS else ""
    return f"{error[: quoted.start()]}{named}…"


def _error(text: str) -> Any:
    code, _, rest = text.partition(" ")
    of_a_cluster = _OF_A_CLUSTER.get(code)
    return _PARSER.parse_error(text) if of_a_cluster is None else of_a_cluster(rest)


class Replies:
    """The replies on one connection of redis-py's.

    Args:
        timeout: for an exchange, in seconds. The first one is redis-py's handshake.

    Attributes:
        stream: the connection; None before it stands.
    """

    def __init__(self, timeout: float) -> None:
        self.stream: Stream | None = None
        self._timeout = timeout

    async def read(self, stream: Stream, depth: int = _MOST_DEPTH) -> Any:
        """Return the next reply: bytes, an int, None, a list of replies, or Redis's error."""
        line = await stream.read_line()
        sign, rest = line[:1], line[1:]
        match sign:
            case b"+":
                return rest
            case b":":
                return -number(rest[1:]) if rest[:1] == b"-" else number(rest)
            case b"$" | b"*" if rest == b"-1":
                return None
            case b"$":
                return await stream.read_block(number(rest))
            case b"*" if depth:
                count = number(rest)
                if count > MOST_BYTES // _LEAST_BYTES:
                    raise Refused(f"it announced {count:,} replies in one")
                return [await self.read(stream, depth - 1) for _ in range(count)]
            case b"-":
                return _error(_without_arguments(rest.decode("utf-8", "replace")))
            case _:
                raise Refused(f"it answered {words(line)}, which is no reply of Redis")

    # --- as redis-py calls a parser ---------------------------------------------------------

    def on_connect(self, connection: Any) -> None:
        self.stream = Stream(connection._sock, self._timeout)

    def on_disconnect(self) -> None:
        if self.stream is not None:
            self.stream.close()

    def read_response(self, disable_decoding: bool = False, **_: object) -> Any:
        """Return the next reply of the handshake."""
        assert self.stream is not None, "redis-py reads before it is connected"
        reply = run(self.read, self.stream)
        if isinstance(reply, redis.ConnectionError):  # as redis-py's parsers do
            raise reply
        return reply
