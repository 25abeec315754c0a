"""Listening sockets, for both servers."""

import ipaddress
import logging
import socket

_log = logging.getLogger(__name__)


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens on an address; port 0 takes a free one.

    A warning is logged if other machines can reach it: neither server asks for a password.

    Raises:
        OSError: the address is taken, or does not resolve, or is not this machine's.
    """
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
    if not is_loopback(listener):
        _log.warning(
            "listening on %s: any client that reaches it can read and change everything, without a"
            " password",
            listener.getsockname()[0],
        )
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only programs on this machine can connect."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
