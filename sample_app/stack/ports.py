"""Finding and checking TCP ports on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping

LOOPBACK = "127.0.0.1"


class PortTaken(Exception):
    """A port that was asked for is in use, or is no port; says what to set."""


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        # As servers do: a connection that lingers in TIME_WAIT does not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def any_free() -> int:
    """A port that is free now. Somebody else may take it before it is used."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def from_environment(environ: Mapping[str, str], variable: str) -> int | None:
    """The port that `variable` asks for, or None when it is not set."""
    text = environ.get(variable, "").strip()
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 65535:
        raise PortTaken(f"{variable} is {text!r}; a port is a number from 0 to 65535 (0: any)")
    return int(text)


def claim(port: int, *, user: str, variable: str) -> int:
    """`port` if it is free, any free port for 0; raises `PortTaken` that says what to do."""
    if port == 0:
        return any_free()
    if not is_free(port):
        raise PortTaken(
            f"Port {port} is taken; {user} needs it. "
            f"Stop what listens there, or choose another port: {variable}={port + 1} make run"
        )
    return port


def prefer(port: int, *, besides: Collection[int] = ()) -> int:
    """`port` if it is free, else any free one; none of those that are spoken for."""
    while port in besides or not is_free(port):
        port = any_free()
    return port
