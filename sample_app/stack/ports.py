"""Finding and checking TCP ports on the loopback interface."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Collection, Mapping

LOOPBACK = "127.0.0.1"


class PortTaken(Exception):
    """A configured port is in use or invalid. The message names the setting to change."""


def is_free(port: int) -> bool:
    """Return whether a server could listen on `port` now."""
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def any_free() -> int:
    """Return a port that is free now. Another server may take it before it is used.

    No outgoing connection takes it, also not while its server restarts: systems give those
    other ports.
    """
    while not is_free(port := 10_000 + secrets.randbelow(20_000)):
        pass
    return port


def from_environment(environ: Mapping[str, str], variable: str) -> int | None:
    """Return the port in `variable`, or None if it is not set."""
    text = environ.get(variable, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 65535:
        raise PortTaken(f"{variable} is {text!r}; a port is a number from 0 to 65535 (0: any)")
    return int(text)


def claim(port: int, *, user: str, variable: str) -> int:
    """Return `port` if it is free, any free port for 0; raise `PortTaken` with advice otherwise."""
    if port == 0:
        return any_free()
    if not is_free(port):
        raise PortTaken(
            f"Port {port} is taken; {user} needs it. "
            f"Stop what listens there, or choose another port: {variable}={port + 1} make run"
        )
    return port


def prefer(port: int, *, taken: Collection[int] = ()) -> int:
    """Return `port` if it is free, else any free one, but none of `taken`."""
    while port in taken or not is_free(port):
        port = any_free()
    return port
