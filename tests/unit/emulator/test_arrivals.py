"""RPCs whose request does not arrive, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from userlock_emulator.port.arrivals import Arrivals


@pytest.mark.parametrize(
    ("calls", "seconds", "cancelled"),
    [(1, 29.9, False), (1, 30.0, True), (2, 29.9, False), (3, 0.24, False), (3, 0.25, True)],
)
def test_a_wait_for_a_request(calls: int, seconds: float, cancelled: bool) -> None:
    """Short when more than half of the four threads wait."""
    now = [0.0]
    arrivals = Arrivals(30, 4, now=lambda: now[0])
    plain = grpc.unary_unary_rpc_method_handler(lambda request, context: request * 2)
    handler: Any = arrivals.intercept_service(lambda details: plain, object())
    contexts = [Mock() for _ in range(calls)]

    def arrive(number: int) -> Iterator[int]:
        # In the middle of the wait for a request, the next call comes.
        if number + 1 < calls:
            assert handler.stream_unary(arrive(number + 1), contexts[number + 1]) == 42
        else:
            now[0] += seconds
            arrivals.expire()
        yield 21

    assert handler.stream_unary(arrive(0), contexts[0]) == 42
    assert [context.cancel.called for context in contexts] == [cancelled] * calls
    now[0] += 1000  # they have arrived
    arrivals.expire()
    assert [context.cancel.called for context in contexts] == [cancelled] * calls


def test_other_handlers_and_no_request_at_all() -> None:
    arrivals = Arrivals(30, 4)
    stream = grpc.stream_unary_rpc_method_handler(lambda requests, context: 1)
    assert arrivals.intercept_service(lambda details: stream, object()) is stream
    assert arrivals.intercept_service(lambda details: None, object()) is None
    plain = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    handler: Any = arrivals.intercept_service(lambda details: plain, object())
    context = Mock(abort=Mock(side_effect=RuntimeError))
    with pytest.raises(RuntimeError):
        handler.stream_unary(iter([]), context)
    assert context.abort.call_args.args[0] is grpc.StatusCode.INVALID_ARGUMENT
