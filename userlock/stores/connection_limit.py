"""A bound on connections: a thread that needs one more waits for its turn.

    A, B (use all there may be)             C                          D
                                            none idle: waits
                                                                       waits
    A gives its connection back ──────────▶ uses it
    B closes its own, after an error ────────────────────────────────▶ may make one

Handed on in order. If connections were put back where any thread finds them,
running threads would take them again and again before the waiting ones wake.

If the server fails one thread, the waiting threads fail at once: one after
another, each would wait for the server as long as the first did.
"""

from __future__ import annotations

import threading
import weakref
from typing import Generic, TypeVar

from userlock.lock.store import NoConnection, StoreUnavailable

_C = TypeVar("_C")


class Place:
    """Room for one connection, which refers to it until it is closed."""

    __slots__ = ("__weakref__",)


class _Waiter(Generic[_C]):
    """One waiting thread, and what it was given."""

    def __init__(self) -> None:
        self.given: _C | Place | None = None
        self.refused = ""  # why there will be none
        self.served = threading.Event()


class Places(Generic[_C]):
    """A number of places for connections. Thread-safe; a forked child needs places of its own.

    A place is free again when nothing refers to it any more: none is lost when
    an interrupt makes a thread drop a connection.

    Args:
        most: how many.
        idle: the connections that nobody uses, each in a place of its own.

    Attributes:
        waiters: the waiting threads, in order.
    """

    def __init__(self, most: int, idle: list[_C]) -> None:
        self._most = most
        self._idle = idle
        self._taken: weakref.WeakSet[Place] = weakref.WeakSet()
        self._lock = threading.Lock()
        self.waiters: dict[_Waiter[_C], None] = {}

    def take(self, seconds: float) -> _C | Place:
        """Return an idle connection, or a place for one.

        Raises:
            NoConnection: there was none within that time.
            StoreUnavailable: the server failed another thread meanwhile.
        """
        waiter = _Waiter[_C]()
        try:
            with self._lock:
                self.waiters[waiter] = None
                self._serve()
            waiter.served.wait(seconds)
        finally:
            with self._lock:
                self.waiters.pop(waiter, None)
        if waiter.given is not None:
            return waiter.given
        if waiter.refused:
            raise StoreUnavailable(waiter.refused, sent=False)
        raise NoConnection(f"all {self._most} connections are in use")

    def refuse(self, reason: str) -> None:
        """Fail the waiting threads: the server does not answer."""
        with self._lock:
            waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            waiter.refused = reason
            waiter.served.set()

    def free(self, place: Place) -> None:
        """Free a place whose connection could not be made."""
        self._taken.discard(place)
        self.hand_on()

    def hand_on(self) -> None:
        """Serve the first waiter after a connection was given back or closed."""
        if self.waiters:
            with self._lock:
                self._serve()

    def _serve(self) -> None:
        while self.waiters:
            try:
                given: _C | Place = self._idle.pop()
            except IndexError:
                # Counted one by one: an interrupt in the set's own tidying up leaves it too long.
                if sum(1 for _ in self._taken) >= self._most:
                    return
                given = Place()
                self._taken.add(given)
            waiter = next(iter(self.waiters))
            del self.waiters[waiter]
            waiter.given = given
            waiter.served.set()
