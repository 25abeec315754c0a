"""The life of a task: an attempt begins, ends, and is followed by another one or by the end.

These functions run inside a change of the storage.
"""

from dataclasses import dataclass
from typing import Any

from userlock_emulator.port.status import Code
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.names import task_name
from userlock_emulator.tasks.protos import Message, has_field, microseconds
from userlock_emulator.tasks.tables import Tables, TaskRow
from userlock_emulator.tasks.validation import retry_of

# "The IDs of deleted tasks are not immediately available for reuse. It can take up to 24 hours."
TASK_TOMBSTONE = 24 * 3600 * protos.MICROSECONDS
# "You may be prevented from creating a new queue with the same name for … up to 3 days."
QUEUE_TOMBSTONE = 3 * 24 * 3600 * protos.MICROSECONDS
# "After a task is 31 days old, the task will be deleted regardless."
RETENTION = 31 * 24 * 3600 * protos.MICROSECONDS

_CODES = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    409: Code.ALREADY_EXISTS,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    500: Code.INTERNAL,
    501: Code.UNIMPLEMENTED,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The end of an attempt.

    Attributes:
        status: the HTTP status code; None: there was no response.
        code: the status code for the attempt, if there was no response.
        text: the reason, if there was no response.
        retry_after: seconds that the target asked to wait.
    """

    status: int | None = None
    code: Code = Code.UNAVAILABLE
    text: str = ""
    retry_after: float = 0.0

    @property
    def success(self) -> bool:
        """Return whether the task is done."""
        return self.status is not None and 200 <= self.status <= 299

    def described(self) -> Message:
        """Return the Status message of the attempt."""
        if self.success:
            return protos.Status(code=Code.OK)
        code = self.code if self.status is None else _CODES.get(self.status, Code.UNKNOWN)
        text = self.text if self.status is None else f"HTTP status code {self.status}"
        return protos.Status(code=code, message=f"{code.name}({int(code)}): {text}")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One delivery of a task.

    Attributes:
        row: number of the task's row.
        queue: number of the queue's row.
        task: the Task message as it was created.
        routing: the queue's App Engine routing, if it overrides the task's.
        number: 1 for the first attempt.
        scheduled: the time that the task was scheduled for.
        dispatched: the time of this attempt.
        forced: the attempt was asked for by RunTask.
        lost: the answer is lost, whatever it is.
    """

    row: int
    queue: int
    queue_name: str
    task: Message
    retry_config: Message
    routing: Message | None
    number: int
    scheduled: int
    dispatched: int
    executions: int
    previous: int | None
    forced: bool = False
    lost: bool = False

    @property
    def deadline(self) -> int:
        """Return the time by which the target must have answered."""
        return self.dispatched + microseconds(self.task.dispatch_deadline)

    @property
    def for_app_engine(self) -> bool:
        """Return whether the target is an App Engine service."""
        return bool(self.task.WhichOneof("message_type") == "app_engine_http_request")

    @property
    def retry_reason(self) -> str:
        """Return the reason of a retry, as the service reports it."""
        if not self.for_app_engine:
            return ""
        return "App Error" if self.previous else "Instance Unavailable"


def begin(
    tables: Tables,
    queue: Message,
    row: TaskRow,
    now: int,
    *,
    forced: bool = False,
    lost: bool = False,
) -> Attempt:
    """Begin an attempt: count it, and note its time."""
    task = protos.Task.FromString(tables.spec(row.number))
    row.running += 1
    row.dispatches += 1
    row.delayed = 0
    if row.first_dispatch is None:
        row.first_dispatch = now
    last = protos.Attempt(
        schedule_time=protos.timestamp(row.scheduled), dispatch_time=protos.timestamp(now)
    )
    row.last = last.SerializeToString()
    tables.update_task(row)
    own = has_field(protos.Task, "retry_config") and task.HasField("retry_config")
    overridden = queue.HasField("app_engine_routing_override")
    return Attempt(
        row=row.number,
        queue=row.queue,
        queue_name=queue.name,
        task=task,
        retry_config=task.retry_config if own else queue.retry_config,
        routing=queue.app_engine_routing_override if overridden else None,
        number=row.dispatches,
        scheduled=row.scheduled,
        dispatched=now,
        executions=row.executions,
        previous=row.previous,
        forced=forced,
        lost=lost,
    )


def finish(tables: Tables, attempt: Attempt, answer: Answer, now: int) -> None:
    """Record the end of an attempt: the task is done, retried, or given up."""
    row = tables.task_numbered(attempt.row)
    if row is None:
        return  # deleted, or done by another delivery
    if answer.success:
        remove(tables, attempt.queue_name, row, now)
        return
    row.running = max(row.running - 1, 0)
    _note_response(row, attempt, answer, now)
    since_first = now - (row.first_dispatch if row.first_dispatch is not None else now)
    retry = retry_of(attempt.retry_config)
    # If another delivery is in flight, its end decides.
    if row.running == 0 and retry.exhausted(row.dispatches, since_first):
        remove(tables, attempt.queue_name, row, now)
        return
    wait = max(
        retry.interval(attempt.number),
        min(int(answer.retry_after * protos.MICROSECONDS), retry.max_backoff),
    )
    # A later time would never come.
    row.scheduled = row.due = (attempt.dispatched if attempt.forced else now) + min(wait, RETENTION)
    tables.update_task(row)


def _note_response(row: TaskRow, attempt: Attempt, answer: Answer, now: int) -> None:
    if answer.status is not None:
        row.responses += 1
        # Recorded from the service: for HTTP targets, responses of the 5xx do not count.
        if attempt.for_app_engine or answer.status < 500:
            row.executions += 1
        row.previous = answer.status
    else:
        # Recorded from the service, for targets that time out.
        timed_out = answer.code is Code.DEADLINE_EXCEEDED
        row.previous = 0 if attempt.for_app_engine else 504 if timed_out else 503
    if attempt.number == row.dispatches:
        last = protos.Attempt.FromString(row.last or b"")
        last.response_time.CopyFrom(protos.timestamp(now))
        last.response_status.CopyFrom(answer.described())
        row.last = last.SerializeToString()


def remove(tables: Tables, queue_name: str, row: TaskRow, now: int) -> None:
    """Delete a task; its name stays used for a time."""
    tables.delete_task(row.number)
    tables.bury(task_name(queue_name, row.id), now + TASK_TOMBSTONE)


def shown(tables: Tables, row: TaskRow, view: Any) -> Message:
    """Return a task as a client sees it, in one of the views of Task.View."""
    task = protos.Task.FromString(tables.spec(row.number))
    task.schedule_time.CopyFrom(protos.timestamp(row.scheduled))
    task.dispatch_count = row.dispatches
    task.response_count = row.responses
    if row.first_dispatch is not None:
        task.first_attempt.dispatch_time.CopyFrom(protos.timestamp(row.first_dispatch))
    if row.last is not None:
        task.last_attempt.ParseFromString(row.last)
    task.view = protos.Task.FULL if view == protos.Task.FULL else protos.Task.BASIC
    if task.view != protos.Task.FULL:
        getattr(task, str(task.WhichOneof("message_type"))).ClearField("body")
    return task
