"""A bound on the callers of this process that wait for one lock.

Each of them occupies a thread. Without a bound, one user's requests occupy all
threads of a server, and the requests of other users wait for a thread:

    8 threads   ann has the lock, 7 requests of ann wait   │ bob waits for a thread
    bounded     ann has the lock, 5 requests of ann wait   │ bob is served; ann's others: 429

Waiters of other processes are not counted: they occupy none of this process's
threads. So the number is exact, costs no round trip, and nothing in the store
can make it wrong.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol

from userlock.fork import reset_in_child
from userlock.lock.lease import Holder
from userlock.waits import locked


class Caller(Protocol):
    """One call that waits; hashed by identity."""

    @property
    def holder(self) -> Holder | None:
        """Return the holder that it met last."""
        ...


class Rejection(NamedTuple):
    """The facts of a rejection.

    Attributes:
        waiting: the number of callers that wait for the lock.
        holder: the holder that one of them met last.
        times: the number of rejections while callers wait for the lock without a break.
    """

    waiting: int
    holder: Holder | None
    times: int


class Admission:
    """The callers of this process that wait, by lock. Thread-safe. A forked child has none."""

    def __init__(self) -> None:
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time
        #: By lock: those that wait, in the order in which they began, and the number of rejections.
        self._crowds: dict[str, dict[Caller, None]] = {}
        self._rejected: dict[str, int] = {}

    def waiting(self, lock_id: str) -> int:
        """Return the number of callers that wait for a lock."""
        return len(self._crowds.get(lock_id, ()))

    def enter(self, lock_id: str, caller: Caller, most: int | None) -> Rejection | None:
        """Let a caller wait, if fewer than `most` do already; None: without a limit.

        Enter inside the `try` whose `finally` leaves: a thread may be stopped
        between any two steps.
        """
        return locked(self._mutex, self._enter, lock_id, caller, most)

    def _enter(self, lock_id: str, caller: Caller, most: int | None) -> Rejection | None:
        crowd = self._crowds.get(lock_id, {})
        if most is not None and len(crowd) >= most:
            times = self._rejected.get(lock_id, 0) + 1
            if crowd:
                self._rejected[lock_id] = times
            # The latest to begin has the latest news, once it has met the holder.
            met = (each.holder for each in reversed(crowd))
            holder = next((holder for holder in met if holder is not None), None)
            return Rejection(len(crowd), holder, times)
        self._crowds.setdefault(lock_id, {})[caller] = None
        return None

    def leave(self, lock_id: str, caller: Caller) -> None:
        """Give a caller's place back. Does nothing if it has none."""
        locked(self._mutex, self._leave, lock_id, caller)

    def _leave(self, lock_id: str, caller: Caller) -> None:
        crowd = self._crowds.get(lock_id, {})
        crowd.pop(caller, None)
        if not crowd:
            self._crowds.pop(lock_id, None)
            self._rejected.pop(lock_id, None)
