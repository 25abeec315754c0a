"""The gRPC side of the service: bytes in, bytes out, errors as status.

The methods are registered by name with the plain protobuf classes, without
generated service stubs, so that nothing of the client library is imported but its
message types.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from emulator.datastore import protos
from emulator.datastore.engine import Engine
from emulator.datastore.errors import Code, DatastoreError
from emulator.datastore.faults import Faults, Run
from emulator.datastore.protos import Message

SERVICE = "google.datastore.v1.Datastore"

_log = logging.getLogger(__name__)
_STATUS = {code.value[0]: code for code in grpc.StatusCode}


def methods(engine: Engine, faults: Faults) -> dict[str, tuple[Run, Any]]:
    """The RPCs by name: what runs them, and the class of their request.

    Other transports use it too.
    """
    rpcs: dict[str, tuple[Run, Any]] = {
        "Lookup": (engine.lookup, protos.LookupRequest),
        "RunQuery": (engine.run_query, protos.RunQueryRequest),
        "RunAggregationQuery": (
            engine.run_aggregation_query,
            protos.RunAggregationQueryRequest,
        ),
        "BeginTransaction": (engine.begin_transaction, protos.BeginTransactionRequest),
        "Commit": (engine.commit, protos.CommitRequest),
        "Rollback": (engine.rollback, protos.RollbackRequest),
        "AllocateIds": (engine.allocate_ids, protos.AllocateIdsRequest),
        "ReserveIds": (engine.reserve_ids, protos.ReserveIdsRequest),
    }
    return {
        name: (faults.around(name, run), request_class)
        for name, (run, request_class) in rpcs.items()
    }


def handlers(rpcs: Mapping[str, tuple[Run, Any]]) -> grpc.GenericRpcHandler:
    """The service's methods, to be added to a gRPC server."""
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: grpc.unary_unary_rpc_method_handler(
                _behaviour(name, run),
                request_deserializer=request_class.FromString,
                response_serializer=_serialize,
            )
            for name, (run, request_class) in rpcs.items()
        },
    )


def _serialize(response: Message) -> bytes:
    serialized: bytes = response.SerializeToString()
    return serialized


def _behaviour(name: str, run: Run) -> Callable[[Message, grpc.ServicerContext], Message]:
    def call(request: Message, context: grpc.ServicerContext) -> Message:
        started = time.perf_counter()
        try:
            return run(request)
        except DatastoreError as error:
            _log.debug("%s: %s: %s", name, error.code.name, error.message)
            context.abort(_STATUS[error.code], error.message)
        except Exception as error:
            _log.exception("%s failed", name)
            context.abort(_STATUS[Code.INTERNAL], f"The emulator failed: {error!r}")
        finally:
            if _log.isEnabledFor(logging.DEBUG):
                _log.debug("%s took %.3f ms", name, (time.perf_counter() - started) * 1000)

    return call
