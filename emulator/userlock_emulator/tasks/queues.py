"""The RPCs on queues. Source: the reference of the v2 API."""

import re
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format

from userlock_emulator.port.pages import page
from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.attempts import QUEUE_TOMBSTONE, TASK_TOMBSTONE
from userlock_emulator.tasks.names import (
    check_location,
    check_queue,
    invalid,
    location_of,
    task_name,
)
from userlock_emulator.tasks.protos import Message, Queue
from userlock_emulator.tasks.storage import Storage
from userlock_emulator.tasks.tables import Tables
from userlock_emulator.tasks.validation import complete_queue, unimplemented, update_queue

_MAX_PAGE = 9800
# As the flags of `gcloud tasks queues create`, by the part of the queue.
_SETTINGS = {
    **dict.fromkeys(("max-dispatches-per-second", "max-concurrent-dispatches"), "rateLimits"),
    **dict.fromkeys(
        ("max-attempts", "max-retry-duration", "min-backoff", "max-backoff", "max-doublings"),
        "retryConfig",
    ),
}
_STATE_FILTER = re.compile(r"\s*state\s*[:=]\s*\"?(RUNNING|PAUSED|DISABLED)\"?\s*")


def no_queue() -> RpcError:
    """Return the error for a queue that does not exist (any more)."""
    return RpcError(
        Code.NOT_FOUND,
        "Queue does not exist. If you just created the queue, wait at least a minute for the queue"
        " to initialize.",
    )


def described_queue(text: str) -> Message:
    """Return the queue that a text describes: its full name and settings, with commas between.

    Raises:
        RpcError: the name is malformed, or a setting unknown or malformed.
    """
    name, *settings = text.split(",")
    document: dict[str, Any] = {"name": check_queue(name)}
    for setting in settings:
        word, _, value = setting.partition("=")
        part = _SETTINGS.get(word)
        if part is None:
            raise invalid(f"There is no setting {word[:40]!r}; there are: {', '.join(_SETTINGS)}.")
        unlimited = (word, value) == ("max-attempts", "unlimited")
        field = re.sub("-(.)", lambda match: match[1].upper(), word)
        document.setdefault(part, {})[field] = "-1" if unlimited else value
    queue = Queue()
    try:
        json_format.ParseDict(document, queue)
    except (json_format.ParseError, ValueError) as error:
        raise invalid(f"The settings of the queue {name} are malformed: {error}") from None
    complete_queue(queue)
    return queue


def find_queue(tables: Tables, name: str) -> tuple[int, Message]:
    """Return the number and the message of a queue.

    Raises:
        RpcError: it does not exist.
    """
    found = tables.queue(check_queue(name))
    if found is None:
        raise no_queue()
    number, data = found
    return number, Queue.FromString(data)


class Queues:
    """The RPCs on queues.

    Args:
        now: the clock, in microseconds.
        changed: called after the queues have changed.
    """

    def __init__(
        self, storage: Storage, now: Callable[[], int], changed: Callable[[], None]
    ) -> None:
        self._storage = storage
        self._now = now
        self._changed = changed

    def create(self, request: Message) -> Message:
        """Create a queue (RPC CreateQueue)."""
        name = check_queue(request.queue.name)
        if location_of(name) != check_location(request.parent):
            raise invalid("Invalid resource field value in the request.")
        queue = Queue()
        queue.CopyFrom(request.queue)
        with self._storage.change() as tables:
            if tables.queue(name) is not None:
                raise RpcError(Code.ALREADY_EXISTS, "Queue already exists")
            self._add(tables, queue)
        self._changed()
        return queue

    def _add(self, tables: Tables, queue: Message) -> None:
        if tables.buried(queue.name, self._now()):
            raise RpcError(
                Code.FAILED_PRECONDITION,
                "The queue cannot be created because a queue with this name existed too recently.",
            )
        queue.ClearField("purge_time")
        queue.state = Queue.RUNNING
        complete_queue(queue)
        tables.put_queue(queue.name, queue.SerializeToString())

    def get(self, request: Message) -> Message:
        """Return a queue (RPC GetQueue)."""
        with self._storage.look() as tables:
            return find_queue(tables, request.name)[1]

    def list(self, request: Message) -> Message:
        """Return queues of a location, ordered by name (RPC ListQueues)."""
        prefix = f"{check_location(request.parent)}/queues/"
        state = _state(request.filter)
        found: dict[str, Message] = {}
        with self._storage.look() as tables:
            for _, name, data in tables.queues():
                queue = Queue.FromString(data)
                if name.startswith(prefix) and state in (None, queue.state):
                    found[name] = queue
        names, token = page(found, request, _MAX_PAGE)
        queues = [found[name] for name in names]
        return protos.ListQueuesResponse(queues=queues, next_page_token=token)

    def update(self, request: Message) -> Message:
        """Change a queue, or create it (RPC UpdateQueue)."""
        name = check_queue(request.queue.name)
        queue = Queue()
        with self._storage.change() as tables:
            stored = tables.queue(name)
            if stored is None:
                queue.CopyFrom(request.queue)
                self._add(tables, queue)
            else:
                queue.ParseFromString(stored[1])
                update_queue(queue, request.queue, list(request.update_mask.paths))
                complete_queue(queue)
                tables.put_queue(name, queue.SerializeToString())
        self._changed()
        return queue

    def delete(self, request: Message) -> Message:
        """Delete a queue with its tasks (RPC DeleteQueue)."""
        name = check_queue(request.name)
        with self._storage.change() as tables:
            found = tables.queue(name)
            if found is None:
                raise RpcError(Code.NOT_FOUND, "Requested entity was not found.")
            tables.delete_queue(found[0])
            tables.bury(name, self._now() + QUEUE_TOMBSTONE)
        self._changed()
        return protos.Empty()

    def purge(self, request: Message) -> Message:
        """Delete all tasks of a queue (RPC PurgeQueue)."""
        with self._storage.change() as tables:
            number, queue = find_queue(tables, request.name)
            now = self._now()
            queue.purge_time.CopyFrom(protos.timestamp(now))
            tables.put_queue(queue.name, queue.SerializeToString())
            for task_id in tables.ids(number, now):
                tables.bury(task_name(queue.name, task_id), now + TASK_TOMBSTONE)
            tables.delete_tasks(number, now)
        self._changed()
        return queue

    def pause(self, request: Message) -> Message:
        """Stop dispatching the tasks of a queue (RPC PauseQueue)."""
        return self._set_state(request.name, Queue.PAUSED)

    def resume(self, request: Message) -> Message:
        """Dispatch the tasks of a queue again (RPC ResumeQueue)."""
        return self._set_state(request.name, Queue.RUNNING)

    def _set_state(self, name: str, state: int) -> Message:
        with self._storage.change() as tables:
            _, queue = find_queue(tables, name)
            queue.state = state
            tables.put_queue(name, queue.SerializeToString())
        self._changed()
        return queue


def _state(text: str) -> int | None:
    if not text.strip():
        return None
    match = _STATE_FILTER.fullmatch(text)
    if match is None:
        raise unimplemented('ListQueuesRequest.filter other than "state: PAUSED"')
    return int(Queue.State.Value(match[1]))
