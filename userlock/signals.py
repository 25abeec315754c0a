"""Errors that a signal handler has raised, at whatever line the main thread was.

The usual time limit of Unix is an alarm whose handler raises `TimeoutError`. Where a library waits
for a server, that looks like the server's own.
"""

from __future__ import annotations

import signal
import traceback
from types import CodeType
from typing import Any


def raised_by_handler(error: BaseException | None) -> BaseException | None:
    """Return the error of a signal handler that an error is, or was raised for; or None."""
    handlers = {_code_of(signal.getsignal(each)) for each in signal.valid_signals()}
    while error is not None:
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__)):
            return error
        error = error.__cause__ or error.__context__
    return None


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "func", handler)  # of a `functools.partial`
    if not hasattr(function, "__code__"):
        function = vars(type(function)).get("__call__")
    code: CodeType | None = getattr(function, "__code__", None)
    return code
