"""One thread per process that does what is due for all locks: renewals, confirmations.

It knows nothing of leases. A *ward* says when it is next to be looked after;
the heart calls it then. The thread is started with the first ward, is a
daemon, and does not survive a fork: the child's own first ward starts the
child's own, and the parent's wards stay the parent's.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import threading
import weakref
from typing import Protocol

from userlock.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)

#: After an error that nobody foresaw, a ward is looked after again in so many seconds.
_AFTER_ERROR_SECONDS = 1.0


class Ward(Protocol):
    """What is looked after."""

    def beat(self, now: float) -> float | None:
        """Do what is due at `now`; when to be called again, or None for never."""
        ...


class Heart:
    """Calls wards when they are due. Thread-safe.

    Wards are kept by weak references: what nobody else keeps is forgotten.

    Args:
        clock: for the time.
        threaded: whether to run a thread; without, whoever owns the clock calls `beat`.
    """

    def __init__(self, clock: Clock, *, threaded: bool) -> None:
        self._clock = clock
        self._threaded = threaded
        self._order = itertools.count()
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, weakref.ref[Ward]]] = []
        self._thread: threading.Thread | None = None

    def look_after(self, ward: Ward, due: float) -> None:
        """Call `ward.beat` at `due`, on this heart's clock, and when it says from then on."""
        with self._changed:
            heapq.heappush(self._due, (due, next(self._order), weakref.ref(ward)))
            if not self._threaded:
                return
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="userlock-heart", daemon=True
                )
                self._thread.start()
            elif self._due[0][0] == due:
                self._changed.notify()

    def beat(self) -> float | None:
        """Look after everyone who is due; when the next one will be, None if there is nobody."""
        while True:
            with self._changed:
                if not self._due:
                    return None
                if self._due[0][0] > self._clock.now():
                    return self._due[0][0]
                _, _, reference = heapq.heappop(self._due)
            ward = reference()
            if ward is None:
                continue
            again = self._call(ward)
            if again is not None:
                with self._changed:
                    heapq.heappush(self._due, (again, next(self._order), reference))
            del ward  # or this frame would keep it

    def _call(self, ward: Ward) -> float | None:
        try:
            return ward.beat(self._clock.now())
        except Exception:
            log.exception("a lock could not be looked after; trying again")
            return self._clock.now() + _AFTER_ERROR_SECONDS

    def _run(self) -> None:
        while True:
            self.beat()
            with self._changed:
                wait = self._due[0][0] - self._clock.now() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)


_all: weakref.WeakSet[Heart] = weakref.WeakSet()


def _after_fork() -> None:
    for heart in list(_all):
        heart._begin()


os.register_at_fork(after_in_child=_after_fork)

#: The one of this process.
SYSTEM_HEART = Heart(SYSTEM_CLOCK, threaded=True)
