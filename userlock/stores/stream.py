"""Commands out and replies in, on one connection: one deadline and one bound per exchange.

A socket's time-out bounds each `recv`, not the reply: a byte every 0.25 s may go on for hours. So
every call of the socket gets the time that is left of its exchange. In a thread it blocks; in a
task the event loop watches the socket. A reply is refused as soon as it announces more than the
bound. After any error the connection must be closed: its replies are out of step from then on.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
from collections.abc import Callable, Sized
from typing import Any

import userlock.ids as ids
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.store import MAX_RECORD_BYTES
from userlock.waits import blocking, ready, running_loop

#: Most bytes of a line.
MOST_LINE_BYTES = 2048
#: Most bytes of one value (a record, and its head in Redis), and of all replies of one exchange.
MOST_VALUE_BYTES = MAX_RECORD_BYTES + 1024
MOST_BYTES = 1 << 24
#: How many values one exchange has room for, however long they are.
MOST_VALUES = MOST_BYTES // (MOST_VALUE_BYTES + MOST_LINE_BYTES)
#: Most digits of a number: those of 64 bits.
_MOST_DIGITS = 20

#: Nearly all replies of one line; Python has such small buffers at hand.
_SHORT = 256
_CHUNK = 4096
_MOST_CHUNK = 1 << 16
#: The part of a time-out by which an exchange may overrun: setting a socket's is a system call.
_SLACK = 1 / 32


def poll_of(*files: Any) -> Callable[[float], Sized]:
    """Return what waits until a socket can be read, for so many milliseconds; empty: none can."""
    if not hasattr(select, "poll"):  # Windows, eventlet
        return lambda milliseconds: select.select(files, [], [], milliseconds / 1000)[0]
    poll = select.poll()  # unlike select.select, for any file number
    for file in files:
        poll.register(file, select.POLLIN)
    return poll.poll


class Refused(Exception):
    """The server answered, but not as the protocol says, or with too much."""


class TooLong(Refused):
    """A value is longer than any record. It is not read."""


class Place:
    """Room for one connection in a pool."""

    __slots__ = ("__weakref__",)


class Stream:
    """One connection, used by one caller at a time, thread or task. `timeout`: for an exchange."""

    #: In its pool, until it is closed.
    place: Place | None = None

    def __init__(
        self, sock: Any, timeout: float, now: Callable[[], float] = SYSTEM_CLOCK.now
    ) -> None:
        self._socket = sock
        self._timeout = timeout
        self._now = now
        sock.settimeout(timeout)
        #: The socket's own time-out; 0 for a task's.
        self._patience = timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        # Not over TLS. With a time-out a plain socket does not block. Its own `send` waits for room
        # first, which is a system call more; nearly always there is room.
        self.plain = type(sock) is socket.socket and os.name == "posix"
        self._file = sock.fileno() if self.plain else None
        self._buffer = b""
        #: Whether it is readable within so many milliseconds: an idle one has ended, most likely.
        self.stale = poll_of(sock)
        self.begin()

    def begin(self) -> None:
        """Begin an exchange: the time and the bytes that it may take count from here on."""
        self.began = self._now()
        self._room = MOST_BYTES
        self._loop = None if blocking.now() else running_loop()
        patience = self._timeout if self._loop is None else 0.0
        if self._patience != patience:
            self._wait_at_most(patience)

    def fileno(self) -> int:
        return int(self._socket.fileno())

    @property
    def buffered(self) -> bool:
        """Return whether there are bytes that `select` does not see any more."""
        pending = getattr(self._socket, "pending", None)  # over TLS
        return bool(self._buffer) or (pending is not None and pending() > 0)

    def close(self) -> None:
        """Send nothing any more: another file may get the number of this one. Others close it."""
        self._file = None

    async def send(self, wire: bytes) -> None:
        try:
            rest = wire if self._file is None else wire[os.write(self._file, wire) :]
        except BlockingIOError:
            rest = wire
        if rest and self._loop is None:
            self._hurry()
            self._socket.sendall(rest)
            self._hurry()
            return
        while rest:
            assert self._loop is not None
            rest = rest[await self._in_task(self._loop, self._socket.send, rest) :]

    async def ask(self, wire: bytes) -> bytes:
        """Send a command whose reply is one line; return it without its end."""
        if self._file is None or self._loop is not None or self._room < MOST_BYTES:
            await self.send(wire)
            line = await self.read_line()
        else:  # a thread's first command: with few steps
            try:
                rest = wire[os.write(self._file, wire) :]
            except BlockingIOError:
                rest = wire
            if rest:
                await self.send(rest)
            self._room -= _SHORT
            reply = self._socket.recv(_SHORT)
            line = reply[:-2]
            if reply[-2:] != b"\r\n" or b"\n" in line:
                self._buffer = reply  # nothing, if the connection has ended: found out there
                line = await self.read_line()
        if self._buffer:
            self.finish()
        return line

    async def read_line(self) -> bytes:
        """Return the next line, without its end."""
        line, end, self._buffer = (self._buffer or await self.receive()).partition(b"\r\n")
        while not end:
            if len(line) > MOST_LINE_BYTES:
                raise Refused(f"it answered {words(line)}")
            line, end, self._buffer = (line + await self.receive()).partition(b"\r\n")
        return line

    async def read_block(self, size: int) -> bytes:
        """Return a block of `size` bytes, and skip the line end after it."""
        if not 0 <= size <= MOST_VALUE_BYTES:
            raise TooLong(f"it announced {size:,} bytes; the most is {MOST_VALUE_BYTES:,}")
        found = self._buffer
        if len(found) < size + 2:
            block = bytearray(found)
            while len(block) < size + 2:
                block += await self.receive(_MOST_CHUNK)
            found = bytes(block)
        if found[size : size + 2] != b"\r\n":
            raise Refused("it sent a block of another length than it said")
        self._buffer = found[size + 2 :]
        return found[:size]

    async def receive(self, size: int = _CHUNK) -> bytes:
        """Return the next bytes, however many have come, from behind those read by line."""
        chunk: bytes
        if self._loop is None:
            if self._room != MOST_BYTES:  # nearly all exchanges need one call, with the whole time
                self._hurry()
            chunk = self._socket.recv(size)
        else:
            chunk = await self._in_task(self._loop, self._socket.recv, size)
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        self._room -= len(chunk)
        if self._room < 0:
            raise Refused(f"it answered with more than {MOST_BYTES:,} bytes")
        return chunk

    async def _in_task(
        self, loop: asyncio.AbstractEventLoop, call: Callable[[Any], Any], argument: object
    ) -> Any:
        """Return the result of a call of the socket that does not block."""
        while True:
            try:
                return call(argument)
            except (BlockingIOError, ssl.SSLWantReadError):
                to_write = call == self._socket.send and self.plain
            except ssl.SSLWantWriteError:
                to_write = True
            await ready(
                loop, self.fileno(), self.began + self._timeout - self._now(), to_write=to_write
            )

    def finish(self) -> None:
        """Make sure that all replies have been read."""
        if self._buffer:
            raise Refused(f"it answered more than was asked: {words(self._buffer)}")

    def _hurry(self) -> None:
        """Give the socket's next call the time that is left."""
        left = self.began + self._timeout - self._now()
        if left <= 0:
            raise TimeoutError("timed out")
        if left < self._patience - self._timeout * _SLACK:
            self._wait_at_most(left)

    def _wait_at_most(self, seconds: float) -> None:
        self._socket.settimeout(seconds)
        self._patience = seconds


def words(reply: bytes, most: int = 80) -> str:
    """Return the begin of a reply for a message; none of it if ids are hidden: it may have keys."""
    if not ids.are_plain():
        return f"{len(reply):,} bytes"
    return f"{reply[:most]!r}{'…' * (len(reply) > most)}"


def number(text: bytes) -> int:
    """Return a whole number from 0 on; `Refused` for anything else that Python's `int` takes."""
    if not text.isdigit() or len(text) > _MOST_DIGITS:
        raise Refused(f"it answered {words(text, 40)} instead of a number")
    return int(text)
