"""A server that answers one command as no server should: slowly, without end, or malformed.

It stands before a real one, so that any step of the protocol can be the one that goes wrong.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.faults.proxy import FaultProxy
from tests.servers import Memcached, RedisServer

#: Between the pieces of a slow reply. Less than any time-out of a store, so that no single `recv`
#: exceeds it.
PIECE_SECONDS = 0.05
#: More than a client takes of one reply, and the buffers on the way.
FLOOD_BYTES = 48 << 20


class Reply(NamedTuple):
    """A hostile reply.

    Attributes:
        name: for messages.
        begin: sent at once.
        repeat: sent again and again after that; empty for nothing.
        slow: with a pause before each piece.
        close: the connection is closed then. Otherwise it stays open, and silent.
        framed: it is a well-formed reply, to another command.
    """

    name: str
    begin: bytes = b""
    repeat: bytes = b""
    slow: bool = False
    close: bool = False
    framed: bool = False

    @staticmethod
    def to(kind: str) -> tuple[Reply, ...]:
        """Return those to clients of a Redis, or of a memcached."""
        return REDIS if kind == "redis" else MEMCACHED


DIGITS = b"9" * 5000
BINARY = bytes(range(256)) * 16
#: What comes in place of a number.
NUMBERS = (
    ("a negative number", b"-5"),
    ("5,000 digits", DIGITS),
    ("21 digits", DIGITS[:21]),
    ("no number", b"nan"),
    ("a number with an underscore", b"1_0"),
    ("nothing for a number", b""),
)

ANY = (
    Reply("silence"),
    Reply("closed at once", close=True),
    Reply("binary", BINARY),
    Reply("HTTP", b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    Reply("an empty line", b"\r\n"),
    Reply("an endless line", repeat=b"x" * 65_536),
    Reply("endless empty lines", repeat=b"\r\n" * 32_768),
    Reply("endless binary", repeat=BINARY * 16),
)

MEMCACHED = (
    *ANY,
    Reply("a slow line", b"V", b"A", slow=True),
    Reply("a slow value, meta", b"VA 900000 c7 t60\r\n", b"x", slow=True),
    Reply("a slow value, text", b"VALUE key 0 900000 7\r\n", b"x", slow=True),
    Reply("slow statistics", b"", b"STAT a b\r\n", slow=True),
    Reply("endless statistics", repeat=b"STAT a b\r\n" * 4096),
    Reply("endless values", repeat=b"VALUE key 0 1 7\r\nx\r\n" * 4096),
    Reply("a huge value, meta", b"VA 300000000 c7 t60\r\n", b"x" * 65_536),
    Reply("a huge value, text", b"VALUE key 0 300000000 7\r\n", b"x" * 65_536),
    Reply("a cut value, meta", b"VA 10 c7 t60\r\nabc", close=True),
    Reply("a cut value, text", b"VALUE key 0 10 7\r\nabc", close=True),
    Reply("a longer value, meta", b"VA 1 c7 t60\r\nabc\r\n"),
    Reply("a longer value, text", b"VALUE key 0 1 7\r\nabc\r\nEND\r\n"),
    *(
        Reply(f"{what}, {dialect}", line % text + rest)
        for what, text in NUMBERS
        for dialect, line, rest in (
            ("length, meta", b"VA %b c7 t60\r\n", b"abc\r\n"),
            ("length, text", b"VALUE key 0 %b 7\r\n", b"abc\r\nEND\r\n"),
            ("CAS number, meta", b"HD c%b\r\n", b""),
            ("CAS number of a value, meta", b"VA 3 c%b t60\r\n", b"abc\r\n"),
            ("CAS number, text", b"STORED\r\nVALUE key 0 3 %b\r\n", b"abc\r\nEND\r\n"),
            ("time", b"STAT time %b\r\n", b"END\r\n"),
            ("version", b"VERSION\r\n%b\r\n", b""),
        )
        # Those replies say that it is not known.
        if not (text == b"" and dialect in ("CAS number of a value, meta", "CAS number, text"))
    ),
    Reply("a value without fields, meta", b"VA\r\n"),
    Reply("a value without fields, text", b"VALUE\r\n"),
    Reply("an error", b"SERVER_ERROR out of order\r\n"),
    Reply("another reply", b"TOUCHED\r\n", framed=True),
)

REDIS = (
    *ANY,
    Reply("a slow line", b"+", b"O", slow=True),
    Reply("a slow value", b"$900000\r\n", b"x", slow=True),
    Reply("a slow list", b"*900000\r\n", b":1\r\n", slow=True),
    Reply("an endless list", b"*1000000\r\n", b"$1\r\nx\r\n" * 4096),
    Reply("a huge list", b"*1000000000\r\n", b":1\r\n" * 4096),
    Reply("a huge value", b"$300000000\r\n", b"x" * 65_536),
    Reply("huge values", b"*300\r\n", b"$1000000\r\n" + b"x" * 1_000_000 + b"\r\n"),
    Reply("an endless error", b"-ERR ", b"x" * 65_536),
    Reply("deep lists", b"*1\r\n" * 100_000 + b":1\r\n"),
    Reply("endless depth", repeat=b"*1\r\n" * 4096),
    Reply("a cut value", b"$10\r\nabc", close=True),
    Reply("a longer value", b"$1\r\nabc\r\n"),
    *(
        Reply(f"{what}, {sign.decode()}", sign + text + b"\r\n" + rest)
        for what, text in NUMBERS
        for sign, rest in ((b"$", b"abc\r\n"), (b"*", b":1\r\n"), (b":", b""))
        if (sign, text) != (b":", b"-5")
    ),
    *(
        Reply(f"RESP3: {reply!r}", reply)
        for reply in (b"%1\r\n+a\r\n:1\r\n", b"_\r\n", b"#t\r\n", b",nan\r\n", b"~1\r\n:1\r\n")
    ),
    *(
        Reply(f"another reply: {reply!r}", reply, framed=True)
        for reply in (
            *(b"+QUEUED\r\n", b":7\r\n", b":-7\r\n", b"$3\r\nabc\r\n", b"*0\r\n"),
            *(b"*2\r\n$3\r\nabc\r\n$1\r\n5\r\n", b"*2\r\n$-1\r\n:5\r\n", b"*1\r\n*1\r\n:1\r\n"),
            *(b"*2\r\n-ERR no\r\n:5\r\n", b"-ERR no\r\n", b"-LOADING it\r\n", b"-\r\n"),
        )
    ),
    Reply("two replies", b"+OK\r\n:1\r\n"),
    Reply("two lists", b"*2\r\n$3\r\nabc\r\n:5\r\n*0\r\n"),
)


def real_server(request: pytest.FixtureRequest, kind: str) -> Memcached | RedisServer:
    """Return the Redis of the tests, or their memcached."""
    server: Memcached | RedisServer = request.getfixturevalue(
        "redis_server" if kind == "redis" else "memcached"
    )
    return server


class HostileServer(FaultProxy):
    """A real server, but for some replies. A context manager.

    Attributes:
        sent: the bytes of hostile replies that clients took.
        answered: how many commands got a hostile reply.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.sent = self.answered = 0
        self._command = b""
        self._reply: Reply | None = None
        self._skipped = 0

    def __enter__(self) -> HostileServer:
        super().__enter__()
        return self

    @contextlib.contextmanager
    def answering(self, reply: Reply, command: bytes = b"", after: int = 0) -> Iterator[None]:
        """Answer each packet that contains these bytes so, after the first ones."""
        self.sent = self.answered = 0
        self._command, self._skipped, self._reply = command, after, reply
        yield
        self.stop_answering()

    def stop_answering(self) -> None:
        """Close the connections that wait for more, and answer as the real one again."""
        self._reply = None

    def _pass(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        reply = self._reply
        if reply is None or self._command not in data or self._skip():
            return super()._pass(data, client, server)
        self.answered += 1
        with contextlib.suppress(OSError):  # the client has gone
            self._answer(reply, client)
        return False

    def _skip(self) -> bool:
        self._skipped -= 1
        return self._skipped >= 0

    def _answer(self, reply: Reply, client: socket.socket) -> None:
        client.settimeout(0.05)
        self._send(client, reply.begin)
        while reply.repeat and self.sent < FLOOD_BYTES and self._reply is reply:
            if reply.slow and self._stopping.wait(PIECE_SECONDS):
                return
            self._send(client, reply.repeat)
        while self._reply is reply and not reply.close and self._listens(client):
            if self._stopping.is_set():
                return

    def _send(self, client: socket.socket, data: bytes) -> None:
        while data and not self._stopping.is_set():
            try:
                sent = client.send(data)
            except TimeoutError:
                continue
            self.sent += sent
            data = data[sent:]

    @staticmethod
    def _listens(client: socket.socket) -> bool:
        try:
            return bool(client.recv(65536))
        except TimeoutError:
            return True
