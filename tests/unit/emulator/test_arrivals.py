"""RPCs whose request does not arrive, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from userlock_emulator.port.arrivals import Arrivals


class Context:
    """The part of a call's context that is used."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def abort(self, code: grpc.StatusCode, text: str) -> None:
        raise RuntimeError(code)


class Bench:
    """A handler behind the interceptor."""

    def __init__(self, threads: int = 4) -> None:
        self.now = 0.0
        self.arrivals = Arrivals(30, threads, now=lambda: self.now)
        plain = grpc.unary_unary_rpc_method_handler(lambda request, context: request * 2)
        handler = self.arrivals.intercept_service(lambda details: plain, object())
        assert handler is not None
        self.call: Any = handler.stream_unary

    def wait(self, calls: int, seconds: float) -> list[bool]:
        """Let so many requests be awaited for that time. Return whether each was cancelled."""
        contexts = [Context() for _ in range(calls)]

        def arrive(number: int) -> Iterator[int]:
            # In the middle of the wait for a request, the next call comes.
            if number + 1 < calls:
                self.call(arrive(number + 1), contexts[number + 1])
            else:
                self.now += seconds
                self.arrivals.expire()
            yield 1

        self.call(arrive(0), contexts[0])
        return [context.cancelled for context in contexts]


@pytest.mark.parametrize(
    ("calls", "seconds", "cancelled"),
    [(1, 29.9, False), (1, 30.0, True), (2, 29.9, False), (3, 0.24, False), (3, 0.25, True)],
)
def test_a_wait_for_a_request(calls: int, seconds: float, cancelled: bool) -> None:
    """Short when more than half of the four threads wait."""
    assert Bench().wait(calls, seconds) == [cancelled] * calls


def test_a_request_that_has_arrived_is_left_alone() -> None:
    bench, context = Bench(), Context()
    assert bench.call(iter([21]), context) == 42
    bench.now = 1000.0
    bench.arrivals.expire()
    assert not context.cancelled


def test_no_request_at_all() -> None:
    with pytest.raises(RuntimeError, match="INVALID_ARGUMENT"):
        Bench().call(iter([]), Context())


def test_a_handler_of_streams_is_left_alone() -> None:
    handler = grpc.stream_unary_rpc_method_handler(lambda requests, context: 1)
    arrivals = Arrivals(30, 4)
    assert arrivals.intercept_service(lambda details: handler, object()) is handler
    assert arrivals.intercept_service(lambda details: None, object()) is None
