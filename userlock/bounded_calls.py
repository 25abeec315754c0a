"""Calls that may hang: each in a thread, and waited for as long as it may take.

Clients wait in more places than they have time-outs for: look-ups of names, first credentials,
connections of before a fork, retries of their own. A call that hangs goes on without its caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from userlock.fork import reset_in_child
from userlock.waits import begun_in_thread


class BoundedCalls:
    """Calls of a process. Thread-safe; a forked child begins without any.

    Args:
        most: how many may be under way, hanging ones included.
        name: of their threads.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self._free = threading.BoundedSemaphore(self._most)

    def within(self, seconds: float, call: Callable[..., Any], *args: Any) -> Any:
        """Return the result of a call, or raise its error.

        Raises:
            TimeoutError: it has taken longer, or too many hang.
        """
        free = self._free
        if not free.acquire(blocking=False):
            raise TimeoutError(f"{self._most} calls have not ended yet")

        def work() -> Any:
            try:
                return call(*args)
            finally:
                free.release()

        try:
            done = begun_in_thread(work, self._name)
        except RuntimeError as error:
            free.release()
            raise TimeoutError(str(error)) from error
        try:
            return done.result(seconds)
        except TimeoutError:
            if done.done():  # it is the call's own
                raise
            raise TimeoutError(f"no answer within {seconds:.3g} s") from None
