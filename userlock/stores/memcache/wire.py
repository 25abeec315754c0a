"""One connection to memcached: commands go out, whole replies come in.

pymemcache makes the connection (addresses, TLS, options); from then on its
socket is used here directly: replies are counted in bytes, so that nothing that
another client stored can pass for a reply, and several commands go in one
packet. After any error a connection must be closed: its replies would be out of
step with its commands from then on.
"""

from __future__ import annotations

import os
import re
import select
import socket
from collections.abc import Callable
from typing import Any

from pymemcache.exceptions import MemcacheError

from userlock.lock.store import MAX_RECORD_BYTES

#: Errors of a command when the server, or the way there, is in trouble.
TROUBLE = (OSError, MemcacheError)
#: Python's and the kernel's errors for a reply that did not come in time.
SLOW = (TimeoutError, BlockingIOError)
_MOST_LINE_BYTES = 2048
#: Nearly all replies of one line; Python has such small buffers at hand.
_LINE_BYTES = 256
_CHUNK = 4096
_ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")


class Refused(Exception):
    """The server answered, but not as the protocol says."""


class Wire:
    """One connection, used by one thread at a time.

    Attributes:
        client: the pymemcache client that made it.
        meta: whether the server speaks the meta protocol: its version tells.
    """

    def __init__(self, client: Any, protocol: str | None = None) -> None:
        self.client = client
        spoken = speaks_meta(client.version())
        self.meta = spoken if protocol is None else protocol == "meta"
        self._sock = client.sock
        # With a time-out a plain socket does not block. Its own `send` waits for room first, which
        # is a system call more; nearly always there is room.
        plain = type(self._sock) is socket.socket and self._sock.gettimeout() and os.name == "posix"
        self._file = self._sock.fileno() if plain else None
        self._buffer = b""
        self._poll: Callable[[int], object] | None = None

    @property
    def stale(self) -> bool:
        """Return whether it is readable; as `pool.Connection.stale`."""
        if self._poll is None:
            poll = select.poll()  # unlike select.select, for any file number
            poll.register(self._sock, select.POLLIN)
            self._poll = poll.poll
        return bool(self._poll(0))

    def close(self) -> None:
        """Close it. It cannot be used again."""
        self._file = None  # another file may get its number
        self.client.close()

    # --- exchanges --------------------------------------------------------------------------

    def line(self, wire: bytes) -> bytes:
        """Send a command whose reply is one line, and return the line without its end.

        Raises:
            OSError: trouble on the way; the command may have been carried out.
            Refused: the server answered with an error.
        """
        self.send(wire)
        reply: bytes
        reply, end, self._buffer = self._sock.recv(_LINE_BYTES).partition(b"\r\n")
        if not end:  # or the connection has ended, which the next read finds out
            self._buffer = reply
            reply = self.read_line()
        if reply.startswith(_ERRORS):
            check(reply)
        if self._buffer:
            self.finish()
        return reply

    def send(self, wire: bytes) -> None:
        """Send commands; `read_line` and `read_data` give their replies."""
        try:
            sent = 0 if self._file is None else os.write(self._file, wire)
        except BlockingIOError:
            sent = 0
        if sent < len(wire):
            self._sock.sendall(wire[sent:])

    def read_line(self) -> bytes:
        """Return the next line, without its end."""
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > _MOST_LINE_BYTES:
                raise Refused(f"memcached answered {self._buffer[:80]!r}…")
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def read_data(self, size: int) -> bytes:
        """Return a block of `size` bytes, and skip the line end after it.

        Raises:
            Refused: the block is longer than any record. It is not read.
        """
        if not 0 <= size <= MAX_RECORD_BYTES:
            raise Refused(f"an item has {size:,.0f} bytes, which no record has")
        while len(self._buffer) < size + 2:
            self._fill()
        data, rest = self._buffer[:size], self._buffer[size : size + 2]
        self._buffer = self._buffer[size + 2 :]
        if rest != b"\r\n":
            raise Refused("memcached sent a block of another length than it said")
        return data

    def finish(self) -> None:
        """Make sure that all replies have been read."""
        if self._buffer:
            raise Refused(f"memcached answered more than was asked: {self._buffer[:80]!r}")

    def receive(self) -> bytes:
        """Return the next bytes, however many have come."""
        chunk: bytes = self._sock.recv(_CHUNK)
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        return chunk

    def _fill(self) -> None:
        self._buffer += self.receive()


def is_a_break(error: BaseException) -> bool:
    """Return whether the connection has ended, so that the command can be sent on another."""
    return isinstance(error, TROUBLE) and not isinstance(error, SLOW)


def check(line: bytes) -> None:
    """Raise if this is one of memcached's error lines."""
    if line.startswith(_ERRORS):
        raise Refused(f"memcached answered {line[:120].decode('latin-1').strip()!r}")


def unexpected(line: bytes) -> Refused:
    """Return the error for a line that is not in the protocol, or for memcached's own."""
    check(line)
    return Refused(f"memcached answered {line[:80]!r}")


def speaks_meta(version: bytes) -> bool:
    """Return whether a server of that version has the meta protocol as it is documented.

    1.6.0 to 1.6.11 had other reply codes and another form of `ms`.
    """
    numbers = re.match(rb"(\d+)\.(\d+)\.(\d+)", version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= (1, 6, 12)
