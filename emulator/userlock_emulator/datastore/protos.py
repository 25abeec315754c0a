"""The plain protobuf classes behind the public `google.datastore.v1` types.

The client package ships proto-plus wrappers, whose attribute access is some twenty times slower
than that of the protobuf messages inside them. The emulator works on the plain messages. They are
created at run time from descriptors, which a type checker cannot see. The aliases at the end
document the message that a function expects.
"""

from typing import Any, TypeAlias

from google.cloud.datastore_v1.types import (
    aggregation_result as _aggregation_result,
)
from google.cloud.datastore_v1.types import datastore as _datastore
from google.cloud.datastore_v1.types import entity as _entity
from google.cloud.datastore_v1.types import query as _query
from google.protobuf import timestamp_pb2 as _timestamp


def _plain(wrapper: Any) -> Any:
    """Return the protobuf class that a proto-plus class wraps."""
    return wrapper.meta.pb


# Requests and responses of the RPCs.
LookupRequest = _plain(_datastore.LookupRequest)
LookupResponse = _plain(_datastore.LookupResponse)
RunQueryRequest = _plain(_datastore.RunQueryRequest)
RunQueryResponse = _plain(_datastore.RunQueryResponse)
RunAggregationQueryRequest = _plain(_datastore.RunAggregationQueryRequest)
RunAggregationQueryResponse = _plain(_datastore.RunAggregationQueryResponse)
BeginTransactionRequest = _plain(_datastore.BeginTransactionRequest)
BeginTransactionResponse = _plain(_datastore.BeginTransactionResponse)
CommitRequest = _plain(_datastore.CommitRequest)
CommitResponse = _plain(_datastore.CommitResponse)
RollbackRequest = _plain(_datastore.RollbackRequest)
RollbackResponse = _plain(_datastore.RollbackResponse)
AllocateIdsRequest = _plain(_datastore.AllocateIdsRequest)
AllocateIdsResponse = _plain(_datastore.AllocateIdsResponse)
ReserveIdsRequest = _plain(_datastore.ReserveIdsRequest)
ReserveIdsResponse = _plain(_datastore.ReserveIdsResponse)

# Their parts.
Mutation = _plain(_datastore.Mutation)
MutationResult = _plain(_datastore.MutationResult)
PropertyTransform = _plain(_datastore.PropertyTransform)
ReadOptions = _plain(_datastore.ReadOptions)
TransactionOptions = _plain(_datastore.TransactionOptions)
Entity = _plain(_entity.Entity)
Key = _plain(_entity.Key)
PartitionId = _plain(_entity.PartitionId)
Value = _plain(_entity.Value)
ArrayValue = _plain(_entity.ArrayValue)
Query = _plain(_query.Query)
Filter = _plain(_query.Filter)
PropertyFilter = _plain(_query.PropertyFilter)
CompositeFilter = _plain(_query.CompositeFilter)
PropertyOrder = _plain(_query.PropertyOrder)
EntityResult = _plain(_query.EntityResult)
QueryResultBatch = _plain(_query.QueryResultBatch)
GqlQuery = _plain(_query.GqlQuery)
AggregationQuery = _plain(_query.AggregationQuery)
AggregationResult = _plain(_aggregation_result.AggregationResult)
Timestamp = _timestamp.Timestamp

# Aliases that document a signature.
Message: TypeAlias = Any
EntityPb: TypeAlias = Any
KeyPb: TypeAlias = Any
ValuePb: TypeAlias = Any
QueryPb: TypeAlias = Any
MutationPb: TypeAlias = Any

MICROSECONDS = 1_000_000


def timestamp(microseconds: int) -> Message:
    """Return a Timestamp message for a time in microseconds since the epoch."""
    seconds, rest = divmod(microseconds, MICROSECONDS)
    return Timestamp(seconds=seconds, nanos=rest * 1000)


def microseconds(timestamp: Message) -> int:
    """Return the microseconds since the epoch of a Timestamp message, rounded down."""
    return int(timestamp.seconds * MICROSECONDS + timestamp.nanos // 1000)
