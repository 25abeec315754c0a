"""The gRPC side of the service: bytes in, bytes out, errors as status.

The methods are registered by name with the plain protobuf classes, without generated service stubs.
Of the client library, only the message types are imported.
"""

from collections.abc import Callable

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from emulator.datastore.errors import DatastoreError
from emulator.datastore.faults import Run
from emulator.datastore.protos import Message
from emulator.datastore.rpcs import Rpcs

SERVICE = "google.datastore.v1.Datastore"

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
