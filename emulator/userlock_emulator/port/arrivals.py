"""RPCs over gRPC whose request does not arrive are ended."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from userlock_emulator.port.rpcs import Message

HURRY_SECONDS = 0.25


class Arrivals(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Ends RPCs whose request does not arrive in time.

    gRPC executes an RPC in a thread from its first header on. Its own handlers of single requests
    wait there for the message, as long as the client likes. So each handler is registered as one
    of a stream of requests, takes the first, and can be cancelled while it waits.

    It also parses the request. gRPC's server loses a stream of the
    connection for each message that its own deserializer cannot parse, until none is left.

    Args:
        seconds: the time for a request to arrive.
        threads: the number of threads. If half of them wait for requests to arrive, the time is
            `HURRY_SECONDS`: normally a request arrives with its header.
        now: a monotonic clock, in seconds.
    """

    def __init__(
        self, seconds: float, threads: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._crowd = threads // 2
        self._now = now
        self._arriving: dict[grpc.ServicerContext, float] = {}

    def expire(self) -> None:
        """Cancel the RPCs that are late. To be called every `HURRY_SECONDS`."""
        arriving = list(self._arriving.items())
        hurry = len(arriving) > self._crowd
        latest = self._now() - (min(HURRY_SECONDS, self._seconds) if hurry else self._seconds)
        for context, since in arriving:
            if since <= latest:
                context.cancel()

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """Return the handler of an RPC, in its form for a stream of requests."""
        handler = continuation(handler_call_details)
        if handler is None or handler.request_streaming:
            return handler
        parse = handler.request_deserializer or (lambda data: data)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._first(parse, handler.unary_stream),
                response_serializer=handler.response_serializer,
            )
        return grpc.stream_unary_rpc_method_handler(
            self._first(parse, handler.unary_unary),
            response_serializer=handler.response_serializer,
        )

    def _first(
        self, parse: Callable[[Any], Message], behaviour: Callable[..., Any]
    ) -> Callable[..., Any]:
        def call(
            requests: Iterator[bytes], context: grpc.ServicerContext, *further: Any, **more: Any
        ) -> Any:
            self._arriving[context] = self._now()
            try:
                data = next(requests, None)
            finally:
                del self._arriving[context]
            if data is None:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request is missing.")
            try:
                request = parse(data)
            except DecodeError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"Malformed request: {error}")
            return behaviour(request, context, *further, **more)

        # The health service watches without a thread.
        call.experimental_non_blocking = getattr(  # type: ignore[attr-defined]
            behaviour, "experimental_non_blocking", False
        )
        return call
