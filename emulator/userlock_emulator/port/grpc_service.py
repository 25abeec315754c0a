"""The gRPC side of a service: bytes in, bytes out, errors as status.

The methods are registered by name with the plain protobuf classes, without generated service stubs.
Of the client libraries, only the message types are imported.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from userlock_emulator.port.relay import PORT_OF_CLIENT
from userlock_emulator.port.rpcs import CLIENT, Message, Rpcs, Run
from userlock_emulator.port.status import Code, RpcError

# gRPC rounds the client's time up. It reports a call without a deadline as one of centuries.
_ROUNDING_SECONDS = 0.5
_NO_DEADLINE_SECONDS = 1e9

_MAX_CLIENT = 200

_STATUS = {code.value[0]: code for code in grpc.StatusCode}


def serve(
    server: grpc.Server, services: Mapping[str, Rpcs], most_seconds: Mapping[str, float]
) -> health.HealthServicer:
    """Add services and gRPC's health service to a gRPC server.

    Args:
        services: the RPCs of each service, by the service's full name.
        most_seconds: the longest deadline that an RPC of this name accepts.
    """
    health_servicer = health.HealthServicer()
    health_servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    for name, rpcs in services.items():
        server.add_generic_rpc_handlers((_handlers(name, rpcs, most_seconds),))
        health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    return health_servicer


def _handlers(
    service: str, rpcs: Rpcs, most_seconds: Mapping[str, float]
) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(
        service,
        {
            name: grpc.unary_unary_rpc_method_handler(
                _behaviour(run, request_class, most_seconds.get(name)),
                response_serializer=_serialize,
            )
            for name, (run, request_class) in rpcs.items()
        },
    )


def _serialize(response: Message) -> bytes:
    serialized: bytes = response.SerializeToString()
    return serialized


def _behaviour(
    run: Run, request_class: type[Message], most_seconds: float | None
) -> Callable[[bytes, grpc.ServicerContext], Message]:
    def call(data: bytes, context: grpc.ServicerContext) -> Message:
        token = CLIENT.set(lambda: _client_of(context))
        try:
            # Here: gRPC would log a traceback for each malformed message.
            request = request_class.FromString(data)
            if most_seconds is not None:
                _check_deadline(context.time_remaining(), most_seconds)
            return run(request)
        except DecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "The request is malformed.")
        except RpcError as error:
            context.abort(_STATUS[error.code], error.message)
        finally:
            CLIENT.reset(token)

    return call


def _client_of(context: grpc.ServicerContext) -> str:
    """Return the libraries that the client names, and its port if the relay has passed it on."""
    headers = dict(context.invocation_metadata())
    named = headers.get("x-goog-api-client") or headers.get("user-agent") or ""
    client = str(named)[:_MAX_CLIENT]
    _, _, address = context.peer().partition(":")
    host, _, port = address.rpartition(":")
    return f"{client or 'gRPC'} at port {port}" if host == PORT_OF_CLIENT else client


def _check_deadline(seconds: float | None, most: float) -> None:
    if seconds is not None and most + _ROUNDING_SECONDS < seconds < _NO_DEADLINE_SECONDS:
        deadline = datetime.now(UTC) + timedelta(seconds=seconds)
        raise RpcError(
            Code.INVALID_ARGUMENT,
            f"The request deadline is {deadline.isoformat()}."
            f" The deadline cannot be more than {most:g}s in the future.",
        )
