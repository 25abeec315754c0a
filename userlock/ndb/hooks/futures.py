"""Futures whose errors must not vanish."""

from __future__ import annotations

import functools
from typing import Any

from google.cloud.ndb import tasklets


@functools.cache
def _observed(kind: Any) -> Any:
    """A kind of futures that notes whether somebody has been told of the error."""
    assert issubclass(kind, tasklets.Future)
    if hasattr(kind, "_userlock_told"):
        return kind

    class Observed(kind):
        _userlock_told = False

        def check_success(self) -> None:
            self._userlock_told = True
            super().check_success()

        def exception(self) -> Any:
            error = super().exception()
            self._userlock_told = self._userlock_told or error is not None
            return error

        get_exception = exception

    Observed.__name__ = kind.__name__
    return Observed


def observe(future: Any) -> None:
    """Note from now on whether somebody is told of its error.

    An error of a `put_async` whose future is dropped would vanish; one that
    the caller has seen must not be raised a second time.
    """
    kind: Any = type(future)
    future.__class__ = _observed(kind)


def has_failed(future: Any) -> bool:
    """Whether it has ended with an error. Asking does not count as being told of it."""
    return future.done() and future._exception is not None


def untold_error(future: Any) -> BaseException | None:
    """The error of an observed future that is done, while nobody has been told of it."""
    error: BaseException | None = None if future._userlock_told else future._exception
    return error
