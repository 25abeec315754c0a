"""The RPCs on tasks. Source: the reference of the v2 API."""

from collections.abc import Callable

from userlock_emulator.port.pages import after_token, page_size, token_after
from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks import attempts, protos
from userlock_emulator.tasks.dispatch import Dispatcher
from userlock_emulator.tasks.names import check_queue, invalid, new_task_id, split_task, task_name
from userlock_emulator.tasks.protos import Message, microseconds
from userlock_emulator.tasks.queues import find_queue
from userlock_emulator.tasks.storage import Storage
from userlock_emulator.tasks.tables import Tables, TaskRow
from userlock_emulator.tasks.validation import complete_task

_MAX_PAGE = 1000
# gRPC's clients refuse larger messages by default. A page has at least one task.
_MAX_PAGE_BYTES = 3 * 1024 * 1024


class Tasks:
    """The RPCs on tasks.

    Args:
        now: the clock, in microseconds.
    """

    def __init__(self, storage: Storage, now: Callable[[], int], dispatcher: Dispatcher) -> None:
        self._storage = storage
        self._now = now
        self._dispatcher = dispatcher

    def create(self, request: Message) -> Message:
        """Add a task to a queue (RPC CreateTask)."""
        queue_name = check_queue(request.parent)
        task = protos.Task()
        task.CopyFrom(request.task)
        given = bool(task.name)
        if given:
            own_queue, task_id = split_task(task.name)
            if own_queue != queue_name:
                raise invalid(
                    f"The queue name from request ('{queue_name}') must be the same as the queue"
                    f" name in the named task ('{own_queue}')."
                )
        else:
            task_id = new_task_id()
            task.name = task_name(queue_name, task_id)
        now = self._now()
        complete_task(task, queue_name, now)
        scheduled = microseconds(task.schedule_time)
        with self._storage.change() as tables:
            number, _ = find_queue(tables, queue_name)
            if given:
                self._check_unused(tables, number, task, task_id, now)
            row = TaskRow(0, number, task_id, now, scheduled, scheduled)
            tables.add_task(row, task.SerializeToString())
            shown = attempts.shown(tables, row, request.response_view)
        self._dispatcher.look_at(number)
        return shown

    def _check_unused(
        self, tables: Tables, queue: int, task: Message, task_id: str, now: int
    ) -> None:
        if tables.task(queue, task_id) is not None:
            raise RpcError(Code.ALREADY_EXISTS, "Requested entity already exists")
        if tables.buried(task.name, now):
            raise RpcError(
                Code.ALREADY_EXISTS,
                "The task cannot be created because a task with this name existed too recently."
                " For more information about task de-duplication see https://cloud.google.com/"
                "tasks/docs/reference/rest/v2/projects.locations.queues.tasks/create"
                "#body.request_body.FIELDS.task.",
            )

    def get(self, request: Message) -> Message:
        """Return a task (RPC GetTask)."""
        with self._storage.look() as tables:
            _, row = self._find(tables, request.name)
            return attempts.shown(tables, row, request.response_view)

    def list(self, request: Message) -> Message:
        """Return tasks of a queue, ordered by id (RPC ListTasks)."""
        count = page_size(request.page_size, _MAX_PAGE)
        after = after_token(request.page_token)
        page: list[Message] = []
        size = 0
        token = ""
        with self._storage.look() as tables:
            number, _ = find_queue(tables, request.parent)
            for row in tables.tasks(number, after, count + 1):
                task = attempts.shown(tables, row, request.response_view)
                size += task.ByteSize()
                if len(page) == count or (page and size > _MAX_PAGE_BYTES):
                    token = token_after(split_task(page[-1].name)[1])
                    break
                page.append(task)
        return protos.ListTasksResponse(tasks=page, next_page_token=token)

    def delete(self, request: Message) -> Message:
        """Delete a task, also one that is being dispatched (RPC DeleteTask)."""
        with self._storage.change() as tables:
            queue, row = self._find(tables, request.name)
            attempts.remove(tables, queue.name, row, self._now())
        self._dispatcher.look_at(row.queue)
        return protos.Empty()

    def run(self, request: Message) -> Message:
        """Dispatch a task now, whatever its time and the limits of its queue (RPC RunTask)."""
        with self._storage.change() as tables:
            queue, row = self._find(tables, request.name)
            attempt = attempts.begin(tables, queue, row, self._now(), forced=True)
            shown = attempts.shown(tables, row, request.response_view)
        self._dispatcher.send_now(attempt)
        self._dispatcher.look_at(row.queue)
        return shown

    def _find(self, tables: Tables, name: str) -> tuple[Message, TaskRow]:
        """Return a task, and the message of its queue."""
        queue_name, task_id = split_task(name)
        stored = tables.queue(queue_name)
        row = None if stored is None else tables.task(stored[0], task_id)
        if stored is not None and row is not None:
            return protos.Queue.FromString(stored[1]), row
        if tables.buried(name, self._now()):
            raise RpcError(
                Code.NOT_FOUND,
                "The task no longer exists, though a task with this name existed recently. The task"
                " either successfully completed or was deleted.",
            )
        raise RpcError(Code.NOT_FOUND, "Requested entity was not found.")

    def count(self, queue: str | None) -> int:
        """Return the number of tasks in a queue, or in all."""
        with self._storage.look() as tables:
            number = None if queue is None else find_queue(tables, queue)[0]
            return tables.count(number)
