"""A server's address, looked up when needed within a time limit.

`getaddrinfo` has no timeout and may take half a minute when name servers are down, while the site
could go on without the lock.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ipaddress
import socket

from userlock.fork import reset_in_child
from userlock.waits import begun_in_thread


def joined(host: str, port: int) -> str:
    """Return an address as it is written: `host:port`, `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Address:
    """A host, by name or number, and a port. Thread-safe; survives fork."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._lookup: concurrent.futures.Future[str] | None = None
        reset_in_child(self._forget)

    def _forget(self) -> None:
        self._lookup = None

    def resolve(self, timeout: float) -> str:
        """Return the host to connect to, as a number; an `OSError` after so many seconds.

        The look-up runs in a thread of its own; an answer that comes too late is
        there for the next caller.
        """
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(self.host))
        lookup = self._lookup
        if lookup is None:
            lookup = begun_in_thread(self._found, "userlock-resolve", or_here=True)
            self._lookup = lookup
        if not concurrent.futures.wait([lookup], timeout).done:
            raise TimeoutError(f"cannot find {self.host!r}: the look-up takes over {timeout} s")
        # Each new connection asks again (they are rare), so that a server that moved is found.
        if self._lookup is lookup:
            self._lookup = None
        try:
            return lookup.result()
        except Exception as problem:  # UnicodeError for names that cannot be one, for instance
            raise OSError(f"cannot find {self.host!r}: {problem}") from None

    def _found(self) -> str:
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        # IPv4 first: such servers are mostly bound to it, and `localhost` names both.
        found.sort(key=lambda entry: entry[0] != socket.AF_INET)
        return str(found[0][4][0])
