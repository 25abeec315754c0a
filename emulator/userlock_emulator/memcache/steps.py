"""The effect of a command on its connection: bytes to send, bytes to wait for, or a close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from userlock_emulator.memcache.item import Item

CRLF = b"\r\n"

Handler = Callable[[list[bytes]], "Step"]
"""Runs one command line, given as its words (at least one)."""

ERROR = b"ERROR"
BAD_FORMAT = b"CLIENT_ERROR bad command line format"
BAD_CHUNK = b"CLIENT_ERROR bad data chunk"
NON_NUMERIC = b"CLIENT_ERROR cannot increment or decrement non-numeric value"
TOO_LARGE = b"SERVER_ERROR object too large for cache"

MAX_VALUE_LENGTH = 2**31 - 1 - 2


@dataclass(slots=True)
class Step:
    """The outcome of one command line or data block."""

    reply: tuple[bytes, ...] = ()
    """Pieces to send, in order; values are sent as stored, uncopied."""
    flush: bool = False
    """memcached writes out all waiting replies at this point (after `get`, after `mn`)."""
    drop: bool = False
    """Drop the unsent replies, then send `reply`.

    memcached does so when a key in a `get` is too long.
    """
    block_bytes: int = 0
    """Wait for a data block of this size, its CRLF included, and pass it to `finish`."""
    finish: Callable[[bytes], Step] | None = None
    then: Callable[[], Step] | None = None
    """Continue the command with this, before the next one. Other clients may come in between."""
    swallow_bytes: int = 0
    """Discard this many bytes of the following input (the data of a refused command)."""
    close: bool = False
    reads: Item | None = None
    """The item whose value `reply` refers to until it is sent."""


def line(text: bytes, *, quiet: bool = False) -> Step:
    """Return a one-line reply, or none if the client said `noreply`."""
    return Step() if quiet else Step(reply=(text + CRLF,))
