"""Connections: those of a pool that a caller uses for long, and a client's to a server."""

from __future__ import annotations

import contextlib
import socket
from typing import TypeVar

from userlock.stores.pool import Pool
from userlock.stores.stream import Stream
from userlock.waits import run

_C = TypeVar("_C", bound=Stream)


def take(pool: Pool[_C]) -> _C:
    """Return a connection that nobody else uses; to be given back, or closed."""
    try:
        return pool.idle.pop()
    except IndexError:
        return run(pool.make, or_idle=True)


def ended(client: socket.socket) -> bool:
    """Wait for the end of a connection."""
    with contextlib.suppress(ConnectionResetError):
        while client.recv(65536):
            pass
    return True


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1))
    except BlockingIOError:
        return True
