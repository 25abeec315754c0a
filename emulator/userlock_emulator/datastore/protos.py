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


def plain(wrapper: Any) -> Any:
    """Return the protobuf class that a proto-plus class wraps."""
    return wrapper.meta.pb


# Requests and responses of the RPCs.
LookupRequest = plain(_datastore.LookupRequest)
LookupResponse = plain(_datastore.LookupResponse)
RunQueryRequest = plain(_datastore.RunQueryRequest)
RunQueryResponse = plain(_datastore.RunQueryResponse)
RunAggregationQueryRequest = plain(_datastore.RunAggregationQueryRequest)
RunAggregationQueryResponse = plain(_datastore.RunAggregationQueryResponse)
BeginTransactionRequest = plain(_datastore.BeginTransactionRequest)
BeginTransactionResponse = plain(_datastore.BeginTransactionResponse)
CommitRequest = plain(_datastore.CommitRequest)
CommitResponse = plain(_datastore.CommitResponse)
RollbackRequest = plain(_datastore.RollbackRequest)
RollbackResponse = plain(_datastore.RollbackResponse)
AllocateIdsRequest = plain(_datastore.AllocateIdsRequest)
AllocateIdsResponse = plain(_datastore.AllocateIdsResponse)
ReserveIdsRequest = plain(_datastore.ReserveIdsRequest)
ReserveIdsResponse = plain(_datastore.ReserveIdsResponse)

# Their parts.
Mutation = plain(_datastore.Mutation)
MutationResult = plain(_datastore.MutationResult)
PropertyTransform = plain(_datastore.PropertyTransform)
ReadOptions = plain(_datastore.ReadOptions)
TransactionOptions = plain(_datastore.TransactionOptions)
Entity = plain(_entity.Entity)
Key = plain(_entity.Key)
PartitionId = plain(_entity.PartitionId)
Value = plain(_entity.Value)
ArrayValue = plain(_entity.ArrayValue)
Query = plain(_query.Query)
Filter = plain(_query.Filter)
PropertyFilter = plain(_query.PropertyFilter)
CompositeFilter = plain(_query.CompositeFilter)
PropertyOrder = plain(_query.PropertyOrder)
EntityResult = plain(_query.EntityResult)
QueryResultBatch = plain(_query.QueryResultBatch)
GqlQuery = plain(_query.GqlQuery)
AggregationQuery = plain(_query.AggregationQuery)
AggregationResult = plain(_aggregation_result.AggregationResult)
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
