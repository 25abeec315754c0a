"""Errors that a signal handler has raised, at whatever line the main thread was.

The usual time limit of Unix is an alarm whose handler raises `TimeoutError`. Where a library waits
for a server, that looks like the server's own.
"""

from __future__ import annotations

import signal
import traceback
from types import CodeType
from typing import Any


def raise_interrupt(error: BaseException) -> None:
    """Raise the error of a signal handler that an error is, or that led to it, if there is one.

    Known by the code of the handlers that are set now. One written in C is not recognised.
    """
    handlers = {_code_of(signal.getsignal(each)) for each in signal.valid_signals()}
    each: BaseException | None = error
    while each is not None:
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(each.__traceback__)):
            raise each
        each = each.__cause__ or each.__context__


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "func", handler)  # of a `functools.partial`
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    code: CodeType | None = getattr(function, "__code__", None)
    return code
