"""The gRPC side of the service: bytes in, bytes out, errors as status.

The methods are registered by name with the plain protobuf classes, without generated service stubs.
Of the client library, only the message types are imported.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from emulator.datastore.errors import DatastoreError
from emulator.datastore.faults import Run
from emulator.datastore.protos import Message
from emulator.datastore.rpcs import Rpcs

SERVICE = "google.datastore.v1.Datastore"

HURRY_SECONDS = 0.25

_STATUS = {code.value[0]: code for code in grpc.StatusCode}


def serve(server: grpc.Server, rpcs: Rpcs) -> health.HealthServicer:
    """Add the service and gRPC's health service to a gRPC server."""
    server.add_generic_rpc_handlers((_handlers(rpcs),))
    health_servicer = health.HealthServicer()
    for name in ("", SERVICE):
        health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    return health_servicer


def _handlers(rpcs: Rpcs) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: grpc.unary_unary_rpc_method_handler(
                _behaviour(run),
                request_deserializer=request_class.FromString,
                response_serializer=_serialize,
            )
            for name, (run, request_class) in rpcs.items()
        },
    )


class Arrivals(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Ends RPCs whose request does not arrive in time.

    gRPC executes an RPC in a thread from its first header on. Its own handlers of single requests
    wait there for the message, as long as the client likes. So each handler is registered as one
    of a stream of requests, takes the first, and can be cancelled while it waits.

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
        codec = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._first(handler.unary_stream), *codec)
        return grpc.stream_unary_rpc_method_handler(self._first(handler.unary_unary), *codec)

    def _first(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        def call(
            requests: Iterator[Message], context: grpc.ServicerContext, *further: Any, **more: Any
        ) -> Any:
            self._arriving[context] = self._now()
            try:
                request = next(requests, None)
            finally:
                del self._arriving[context]
            if request is None:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request is missing.")
            return behaviour(request, context, *further, **more)

        # The health service watches without a thread.
        call.experimental_non_blocking = getattr(  # type: ignore[attr-defined]
            behaviour, "experimental_non_blocking", False
        )
        return call


def _serialize(response: Message) -> bytes:
    serialized: bytes = response.SerializeToString()
    return serialized


def _behaviour(run: Run) -> Callable[[Message, grpc.ServicerContext], Message]:
    def call(request: Message, context: grpc.ServicerContext) -> Message:
        try:
            return run(request)
        except DatastoreError as error:
            context.abort(_STATUS[error.code], error.message)

    return call
