"""The RPCs by name, as each transport calls them: with fault injection and a log line."""

import logging
import time
from typing import Any

from emulator.datastore import protos
from emulator.datastore.engine import Engine
from emulator.datastore.errors import Code, DatastoreError
from emulator.datastore.faults import Faults, Run
from emulator.datastore.protos import Message

#: By the RPC's name: the function that runs it, and the class of its request. The function raises
#: only `DatastoreError`.
Rpcs = dict[str, tuple[Run, Any]]

_log = logging.getLogger(__name__)


def rpcs(engine: Engine, faults: Faults) -> Rpcs:
    """Return the service's RPCs for a transport."""
    served: Rpcs = {
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
        name: (_logged(name, faults.around(name, run)), request_class)
        for name, (run, request_class) in served.items()
    }


def _logged(name: str, run: Run) -> Run:
    """Return `run`, wrapped so that its outcome and cost are logged at debug level."""

    def call(request: Message) -> Message:
        started = time.perf_counter()
        try:
            response = run(request)
        except DatastoreError as error:
            _note(name, started, request, f"{error.code.name}: {error.message}")
            raise
        except Exception as error:
            _log.exception("%s failed", name)
            raise DatastoreError(Code.INTERNAL, f"The emulator failed: {error!r}") from error
        if _log.isEnabledFor(logging.DEBUG):
            _note(name, started, request, f"{response.ByteSize()} bytes out")
        return response

    return call


def _note(name: str, started: float, request: Message, outcome: str) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        took = (time.perf_counter() - started) * 1000
        _log.debug("%s took %.3f ms: %d bytes in, %s", name, took, request.ByteSize(), outcome)
