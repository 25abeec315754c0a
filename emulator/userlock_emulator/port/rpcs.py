"""RPCs by name, as each transport calls them."""

import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

from userlock_emulator.port.status import Code, RpcError

#: A message, created at run time from a descriptor, which a type checker cannot see.
Message: TypeAlias = Any

Run = Callable[[Message], Message]

#: Describes the client of the request that is being executed. Called only if somebody asks.
CLIENT: ContextVar[Callable[[], str]] = ContextVar("client", default=lambda: "")

#: By the RPC's name: the function that runs it, and the class of its request. The function raises
#: only `RpcError`.
Rpcs = dict[str, tuple[Run, Any]]


def logged(name: str, run: Run, log: logging.Logger) -> Run:
    """Return `run`, wrapped so that its outcome and cost are logged at debug level."""

    def note(started: float, request: Message, outcome: str) -> None:
        if log.isEnabledFor(logging.DEBUG):
            took = (time.perf_counter() - started) * 1000
            log.debug("%s took %.3f ms: %d bytes in, %s", name, took, request.ByteSize(), outcome)

    def call(request: Message) -> Message:
        started = time.perf_counter()
        try:
            response = run(request)
        except RpcError as error:
            note(started, request, f"{error.code.name}: {error.message}")
            raise
        except Exception as error:
            log.exception("%s failed", name)
            raise RpcError(Code.INTERNAL, f"The emulator failed: {error!r}") from error
        if log.isEnabledFor(logging.DEBUG):
            note(started, request, f"{response.ByteSize()} bytes out")
        return response

    return call
