"""The batch RPCs, and the operations that they return: each is finished when it is returned.

A batch is not atomic: some of its requests may fail, which its metadata reports by their index.
Source: the messages BatchCreateTasksRequest and BatchDeleteTasksRequest in the v2 API.
"""

import functools
import threading
import uuid
from collections.abc import Callable

from google.protobuf.any_pb2 import Any as AnyMessage

from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.names import check_queue, invalid, location_of, split_task
from userlock_emulator.tasks.protos import Message
from userlock_emulator.tasks.queues import find_queue
from userlock_emulator.tasks.storage import Storage
from userlock_emulator.tasks.tasks import Tasks

_MAX_CREATED = 100
_MAX_DELETED = 1000
# How long the service keeps operations is not documented.
_KEPT = 24 * 3600 * protos.MICROSECONDS


class Batches:
    """The batch RPCs.

    Args:
        now: the clock, in microseconds.
    """

    def __init__(self, storage: Storage, now: Callable[[], int], tasks: Tasks) -> None:
        self._storage = storage
        self._now = now
        self._tasks = tasks
        self._one_at_a_time = threading.Lock()

    def create(self, request: Message) -> Message:
        """Add tasks to a queue, one by one (RPC BatchCreateTasks)."""
        _check_count(len(request.requests), _MAX_CREATED)
        for each in request.requests:
            if each.parent and each.parent != request.parent:
                raise invalid("All tasks of a batch must be for the queue of the batch.")
        created: list[Message] = []

        def one(each: Message) -> None:
            single = protos.CreateTaskRequest()
            single.CopyFrom(each)
            single.parent = request.parent
            created.append(self._tasks.create(single))

        return self._operation(
            request,
            protos.BatchCreateTasksMetadata(),
            [functools.partial(one, each) for each in request.requests],
            lambda: protos.BatchCreateTasksResponse(tasks=created),
        )

    def delete(self, request: Message) -> Message:
        """Delete tasks of a queue, one by one (RPC BatchDeleteTasks)."""
        _check_count(len(request.names), _MAX_DELETED)
        for name in request.names:
            if split_task(name)[0] != request.parent:
                raise invalid("All tasks of a batch must be in the queue of the batch.")

        def one(name: str) -> None:
            self._tasks.delete(protos.DeleteTaskRequest(name=name))

        return self._operation(
            request,
            protos.BatchDeleteTasksMetadata(),
            [functools.partial(one, name) for name in request.names],
            protos.Empty,
        )

    def _operation(
        self,
        request: Message,
        metadata: Message,
        steps: list[Callable[[], None]],
        response: Callable[[], Message],
    ) -> Message:
        """Execute a batch, unless one with the same request id was executed before."""
        with self._one_at_a_time:
            return self._execute(request, metadata, steps, response)

    def _execute(
        self,
        request: Message,
        metadata: Message,
        steps: list[Callable[[], None]],
        response: Callable[[], Message],
    ) -> Message:
        queue = check_queue(request.parent)
        kind = metadata.DESCRIPTOR.name.removesuffix("Metadata")
        # A request id stands for one batch of its queue.
        identity = f"{queue}\n{kind}\n{request.request_id}"
        number = uuid.uuid5(uuid.NAMESPACE_URL, identity) if request.request_id else uuid.uuid4()
        name = f"{location_of(queue)}/operations/{number}"
        with self._storage.look() as tables:
            find_queue(tables, queue)
            stored = tables.operation(name)
        if stored is not None:
            return protos.Operation.FromString(stored)
        metadata.start_time.CopyFrom(protos.timestamp(self._now()))
        for index, step in enumerate(steps):
            try:
                step()
            except RpcError as error:
                failed = metadata.failed_requests[index]
                failed.code, failed.message = error.code, error.message
        metadata.end_time.CopyFrom(protos.timestamp(self._now()))
        failures = len(metadata.failed_requests)
        state = "FAILED" if failures == len(steps) else "PARTIALLY_SUCCEEDED"
        metadata.state = type(metadata).State.Value(state if failures else "SUCCEEDED")
        operation = protos.Operation(
            name=name, done=True, metadata=_packed(metadata), response=_packed(response())
        )
        with self._storage.change() as tables:
            tables.add_operation(name, self._now() + _KEPT, operation.SerializeToString())
        return operation

    def get(self, request: Message) -> Message:
        """Return an operation (RPC GetOperation)."""
        with self._storage.look() as tables:
            stored = tables.operation(request.name)
        if stored is None:
            raise RpcError(Code.NOT_FOUND, "Requested entity was not found.")
        return protos.Operation.FromString(stored)


def _check_count(count: int, most: int) -> None:
    if not 1 <= count <= most:
        raise invalid(f"A batch has 1 to {most} tasks, not {count}.")


def _packed(message: Message) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
