"""A server's address, looked up when needed and never waited for too long.

`getaddrinfo` has no timeout and may take half a minute when name servers are
down. A lock that waits that long for a name makes a site slow that could have
gone on without it.
"""

from __future__ import annotations

import ipaddress
import socket
import threading


class Address:
    """A host, by name or number, and a port. Thread-safe; a forked child needs one of its own.

    The look-up runs in a thread of its own; an answer that comes too late is
    there for the next caller.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._lock = threading.Lock()
        self._lookup: _Lookup | None = None
        self._numeric = _is_numeric(host)

    def resolve(self, timeout: float) -> tuple[str, int]:
        """Return the address to connect to, its host as a number.

        Args:
            timeout: how long to wait for it, in seconds.

        Raises:
            OSError: the name is not known; `TimeoutError`: not in time.
        """
        if self._numeric:
            return self.host, self.port
        with self._lock:
            if self._lookup is None:
                self._lookup = _Lookup(self.host, self.port)
            lookup = self._lookup
        try:
            return lookup.result(timeout)
        finally:
            if lookup.done:
                # Asked anew for each new connection (they are rare), so that
                # a server that moved is found.
                with self._lock:
                    if self._lookup is lookup:
                        self._lookup = None


class _Lookup:
    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._finished = threading.Event()
        self._answer: tuple[str, int] | OSError | None = None
        try:
            threading.Thread(target=self._run, name="userlock-resolve", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._answer = OSError(f"cannot look {host!r} up: {error}")
            self._finished.set()

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    def _run(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            # IPv4 first: such servers are mostly bound to 127.0.0.1 or a
            # private IPv4 address, and `localhost` names both.
            found.sort(key=lambda entry: entry[0] != socket.AF_INET)
            self._answer = (str(found[0][4][0]), self._port)
        except Exception as error:  # UnicodeError for names that cannot be one, for instance
            self._answer = OSError(f"cannot find {self._host!r}: {error}")
        finally:
            self._finished.set()

    def result(self, timeout: float) -> tuple[str, int]:
        if not self._finished.wait(timeout):
            raise TimeoutError(f"cannot find {self._host!r}: the look-up takes over {timeout} s")
        assert self._answer is not None
        if isinstance(self._answer, OSError):
            # A new one each time: an exception gathers the traceback of every
            # place that it passes.
            raise OSError(str(self._answer))
        return self._answer


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
