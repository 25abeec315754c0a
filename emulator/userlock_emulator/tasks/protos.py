"""The plain protobuf classes behind the public `google.cloud.tasks.v2` types.

What a release of the client package lacks is None here, and is not served: batches came in 2.26.
"""

from typing import Any, TypeAlias

from google.cloud.tasks_v2 import types as _types
from google.cloud.tasks_v2.types import target as _target
from google.longrunning import operations_pb2
from google.protobuf import duration_pb2, empty_pb2, timestamp_pb2
from google.rpc import status_pb2

#: A message, created at run time from a descriptor, which a type checker cannot see.
Message: TypeAlias = Any


def _plain(name: str) -> Any:
    """Return the protobuf class that a proto-plus class wraps, or None if there is none."""
    wrapper = getattr(_types, name, None)
    return None if wrapper is None else wrapper.meta.pb


Queue = _plain("Queue")
Task = _plain("Task")
Attempt = _plain("Attempt")
RetryConfig = _plain("RetryConfig")
CreateQueueRequest = _plain("CreateQueueRequest")
GetQueueRequest = _plain("GetQueueRequest")
ListQueuesRequest = _plain("ListQueuesRequest")
ListQueuesResponse = _plain("ListQueuesResponse")
UpdateQueueRequest = _plain("UpdateQueueRequest")
DeleteQueueRequest = _plain("DeleteQueueRequest")
PurgeQueueRequest = _plain("PurgeQueueRequest")
PauseQueueRequest = _plain("PauseQueueRequest")
ResumeQueueRequest = _plain("ResumeQueueRequest")
CreateTaskRequest = _plain("CreateTaskRequest")
GetTaskRequest = _plain("GetTaskRequest")
ListTasksRequest = _plain("ListTasksRequest")
ListTasksResponse = _plain("ListTasksResponse")
DeleteTaskRequest = _plain("DeleteTaskRequest")
RunTaskRequest = _plain("RunTaskRequest")
BatchCreateTasksRequest = _plain("BatchCreateTasksRequest")
BatchCreateTasksResponse = _plain("BatchCreateTasksResponse")
BatchCreateTasksMetadata = _plain("BatchCreateTasksMetadata")
BatchDeleteTasksRequest = _plain("BatchDeleteTasksRequest")
BatchDeleteTasksMetadata = _plain("BatchDeleteTasksMetadata")
_methods: Any = _target.HttpMethod
#: The HTTP methods by number. 0 stands for an unspecified one.
METHODS = {int(each): str(each.name) for each in _methods if each}
POST = int(_methods.POST)
Operation = operations_pb2.Operation
GetOperationRequest = operations_pb2.GetOperationRequest
Status = status_pb2.Status
Empty = empty_pb2.Empty
Timestamp = timestamp_pb2.Timestamp
Duration = duration_pb2.Duration

MICROSECONDS = 1_000_000


def timestamp(microseconds: int) -> Message:
    """Return a Timestamp message for a time in microseconds since the epoch."""
    seconds, rest = divmod(microseconds, MICROSECONDS)
    return Timestamp(seconds=seconds, nanos=rest * 1000)


def microseconds(message: Message) -> int:
    """Return the microseconds of a Timestamp or Duration message, rounded down."""
    return int(message.seconds * MICROSECONDS + message.nanos // 1000)


def duration(microseconds: int) -> Message:
    """Return a Duration message for a time that is not negative."""
    seconds, rest = divmod(microseconds, MICROSECONDS)
    return Duration(seconds=seconds, nanos=rest * 1000)


def has_field(message_class: Any, name: str) -> bool:
    """Return whether the installed release knows a field of a message."""
    return name in message_class.DESCRIPTOR.fields_by_name
