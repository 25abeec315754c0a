"""Calls of other services: each in a thread, and waited for as long as it may take.

Clients wait without end in more places than their users know of. A thread bounds them all. One
that hangs goes on without its caller; there is a bound on their number.
"""

from __future__ import annotations

import concurrent.futures
import contextvars
import threading
from collections.abc import Callable
from typing import Any

from userlock.fork import reset_in_child

#: How long a call may take by default, in seconds.
CALL_SECONDS = 30.0
#: The longest time-out, in seconds.
MOST_SECONDS = 86_400.0
#: The calls of a process that may be under way, hanging ones included.
_MOST = 256


class _Places:
    def __init__(self) -> None:
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self.free = threading.BoundedSemaphore(_MOST)


_PLACES = _Places()


def within(seconds: float, call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call, or raise its error.

    Raises:
        TimeoutError: it has taken longer, or too many hang.
    """
    free = _PLACES.free
    if not free.acquire(blocking=False):
        raise TimeoutError(f"{_MOST} calls of other services have not ended yet")
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(call(*args))
        except BaseException as error:
            done.set_exception(error)
        finally:
            free.release()

    context = contextvars.copy_context()
    try:
        threading.Thread(target=context.run, args=(run,), name="userlock-call", daemon=True).start()
    except RuntimeError as error:  # no more threads
        free.release()
        raise TimeoutError(str(error)) from error
    try:
        return done.result(seconds)
    except concurrent.futures.TimeoutError:
        if done.done():  # it is the call's own
            raise
        raise TimeoutError(f"no answer within {seconds:g} s") from None
