"""The RPCs by name, as each transport calls them: with fault injection and a log line."""

import logging

from userlock_emulator.datastore import protos
from userlock_emulator.datastore.engine import Engine
from userlock_emulator.datastore.faults import Faults
from userlock_emulator.port.rpcs import Rpcs, logged

SERVICE = "google.datastore.v1.Datastore"

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
        name: (logged(name, faults.around(name, run), _log), request_class)
        for name, (run, request_class) in served.items()
    }


def with_log(served: Rpcs) -> Rpcs:
    """Return RPCs beside the service's, which planted faults do not meet."""
    return {
        name: (logged(name, run, _log), request_class)
        for name, (run, request_class) in served.items()
    }
