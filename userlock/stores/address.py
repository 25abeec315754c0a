"""A server's address, looked up when needed within a time limit.

`getaddrinfo` has no timeout and may take half a minute when name servers are down, while the site
could go on without the lock.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import socket

from userlock.stores.timed_calls import TimedCall


def joined(host: str, port: int) -> str:
    """Return an address as it is written: `host:port`, `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Address:
    """A host, by name or number, and a port. Thread-safe; survives fork."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        find = functools.partial(_found, host, port)
        self._lookup = TimedCall(find, "userlock-resolve", f"the look-up of {host!r}")

    async def resolve(self, timeout: float) -> str:
        """Return the host to connect to, as a number; an `OSError` after so many seconds.

        Each new connection asks again (they are rare), so that a server that moved is found.
        """
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(self.host))
        return await self._lookup.result(timeout)


def _found(host: str, port: int) -> str:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except Exception as problem:  # UnicodeError for names that cannot be one, for instance
        raise OSError(f"cannot find {host!r}: {problem}") from None
    # IPv4 first: such servers are mostly bound to it, and `localhost` names both.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return str(found[0][4][0])
