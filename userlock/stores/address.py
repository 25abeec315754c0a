"""A server's address, looked up when needed within a time limit.

`getaddrinfo` has no timeout and may take half a minute when name servers are down, while the site
could go on without the lock. So it is with servers that issue credentials.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import ipaddress
import socket
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from userlock.clock import SYSTEM_CLOCK
from userlock.fork import reset_in_child
from userlock.waits import Bell, begun_in_thread, locked

_Answer = TypeVar("_Answer")

#: For how long an answer that came late is given to the next caller, in seconds.
_GOOD_SECONDS = 30.0


def joined(host: str, port: int) -> str:
    """Return an address as it is written: `host:port`, `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TooLate(TimeoutError):
    """The answer of a `TimedCall` has not come in time."""


class TimedCall(Generic[_Answer]):
    """A function that may block for long, called in a thread. Thread-safe; survives fork.

    Callers share the call that runs. Once it is late they fail at once, and its answer is there for
    the next caller, for a while.
    """

    def __init__(self, function: Callable[[], _Answer], thread_name: str, words: str) -> None:
        self._function = function
        self._thread_name = thread_name
        self._words = words  # for what it does
        self._forget()
        reset_in_child(self._forget)

    def _forget(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time
        self._running: tuple[concurrent.futures.Future[_Answer], float] | None = None

    async def result(self, seconds: float) -> _Answer:
        """Return what the function returns; `TooLate` if it takes longer."""
        future, late_at = running = locked(self._mutex, self._begun, seconds)
        try:
            left = late_at - SYSTEM_CLOCK.now()
            if left > 0:
                bell = Bell()
                future.add_done_callback(lambda _: bell.ring())
                await bell.sleep(left)
            if not future.done():
                raise TooLate(f"{self._words} takes over {seconds:g} s")
            if self._running is running:
                self._running = None
            return future.result()
        finally:
            del future, running  # which keep the error, whose frames would keep them

    def _begun(self, seconds: float) -> tuple[concurrent.futures.Future[_Answer], float]:
        now = SYSTEM_CLOCK.now()
        if self._running is not None:
            future, late_at = self._running
            is_old = now > late_at + _GOOD_SECONDS
            if not future.done() or not (is_old or future.exception()):
                return self._running
        future = begun_in_thread(self._function, self._thread_name, or_here=True)
        self._running = future, now + seconds
        return self._running


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
