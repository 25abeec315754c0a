"""Listening sockets, for both servers."""

import socket


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """A socket that listens on an address; port 0 takes a free one.

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
    return listener
