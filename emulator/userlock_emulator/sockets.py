"""Listening sockets, for both servers."""

import errno
import ipaddress
import logging
import socket

_log = logging.getLogger(__name__)


class PortInUseError(OSError):
    """The address cannot be bound: the port is taken, or the host is not this machine."""


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """Return a socket that listens on an address; port 0 picks a free port.

    A warning is logged if other machines can reach it: neither server has passwords.

    Raises:
        PortInUseError: the address is taken, does not resolve, or is not this machine's.
    """
    try:
        listener = _bound(host, port, backlog)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        reason = "the port is taken" if taken else error.strerror
        raise PortInUseError(f"cannot listen on {host}:{port}: {reason}") from None
    if not is_loopback(listener):
        _log.warning(
            "listening on %s: any client that reaches it can read and change everything, without a"
            " password",
            listener.getsockname()[0],
        )
    return listener


def _bound(host: str, port: int, backlog: int) -> socket.socket:
    family, kind, protocol, _name, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait for the last run's connections to time out.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only programs on this machine can connect."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
