"""The RPCs by name, as each transport calls them: with fault injection and a log line."""

import logging
from typing import Any

from userlock_emulator.port.rpcs import Rpcs, Run, logged
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.batches import Batches
from userlock_emulator.tasks.faults import Faults
from userlock_emulator.tasks.queues import Queues
from userlock_emulator.tasks.tasks import Tasks

SERVICE = "google.cloud.tasks.v2.CloudTasks"
OPERATIONS = "google.longrunning.Operations"

#: "The deadline cannot be more than 30s in the future."
MOST_SECONDS = {"CreateTask": 30.0, "BatchCreateTasks": 30.0}

_log = logging.getLogger(__name__)


def services(queues: Queues, tasks: Tasks, batches: Batches, faults: Faults) -> dict[str, Rpcs]:
    """Return the RPCs of each gRPC service, by its full name."""
    cloud_tasks: dict[str, tuple[Run, Any]] = {
        "ListQueues": (queues.list, protos.ListQueuesRequest),
        "GetQueue": (queues.get, protos.GetQueueRequest),
        "CreateQueue": (queues.create, protos.CreateQueueRequest),
        "UpdateQueue": (queues.update, protos.UpdateQueueRequest),
        "DeleteQueue": (queues.delete, protos.DeleteQueueRequest),
        "PurgeQueue": (queues.purge, protos.PurgeQueueRequest),
        "PauseQueue": (queues.pause, protos.PauseQueueRequest),
        "ResumeQueue": (queues.resume, protos.ResumeQueueRequest),
        "ListTasks": (tasks.list, protos.ListTasksRequest),
        "GetTask": (tasks.get, protos.GetTaskRequest),
        "CreateTask": (tasks.create, protos.CreateTaskRequest),
        "DeleteTask": (tasks.delete, protos.DeleteTaskRequest),
        "RunTask": (tasks.run, protos.RunTaskRequest),
        "BatchCreateTasks": (batches.create, protos.BatchCreateTasksRequest),
        "BatchDeleteTasks": (batches.delete, protos.BatchDeleteTasksRequest),
    }
    operations: dict[str, tuple[Run, Any]] = {
        "GetOperation": (batches.get, protos.GetOperationRequest)
    }
    return {
        SERVICE: _wrapped(cloud_tasks, faults),
        OPERATIONS: _wrapped(operations, faults),
    }


def _wrapped(served: dict[str, tuple[Run, Any]], faults: Faults) -> Rpcs:
    return {
        name: (logged(name, faults.around(name, run), _log), request_class)
        for name, (run, request_class) in served.items()
        if request_class is not None  # the installed client package does not have it
    }
