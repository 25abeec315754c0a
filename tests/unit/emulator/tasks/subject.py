"""The RPCs on a storage in memory, with a clock that is moved by hand and nothing that sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from userlock_emulator.tasks import attempts, protos
from userlock_emulator.tasks.attempts import Answer, Attempt
from userlock_emulator.tasks.batches import Batches
from userlock_emulator.tasks.clock import ManualClock
from userlock_emulator.tasks.dispatch import Dispatcher
from userlock_emulator.tasks.faults import Faults
from userlock_emulator.tasks.protos import Message
from userlock_emulator.tasks.queues import Queues, find_queue
from userlock_emulator.tasks.rpcs import services
from userlock_emulator.tasks.storage import Storage
from userlock_emulator.tasks.tasks import Tasks

LOCATION = "projects/p/locations/l"
QUEUE = f"{LOCATION}/queues/q"
SECOND = 1_000_000
HOUR = 3600 * SECOND
OK = Answer(status=200)


class Sent:
    """A dispatcher that sends nothing."""

    def __init__(self) -> None:
        self.now: list[Attempt] = []

    def look_at(self, queue: int) -> None:
        """Ignore a changed queue."""

    def send_now(self, attempt: Attempt) -> None:
        self.now.append(attempt)


class Subject:
    def __init__(self, data_dir: Path | None = None, start: float = 1_700_000_000.25) -> None:
        self.clock = ManualClock(start)
        self.storage = Storage(data_dir)
        self.sent = Sent()
        self.queues = Queues(self.storage, self.clock, lambda: None)
        self.tasks = Tasks(self.storage, self.clock, cast(Dispatcher, self.sent))
        self.batches = Batches(self.storage, self.clock, self.tasks)
        self.faults = Faults(self.clock, lambda: None)
        self.services = services(self.queues, self.tasks, self.batches, self.faults)
        self.rpcs = {name: rpc for rpcs in self.services.values() for name, rpc in rpcs.items()}

    def call(self, rpc: str, **fields: Any) -> Message:
        run, request_class = self.rpcs[rpc]
        return run(request_class(**fields))

    def create_queue(self, name: str = QUEUE, **settings: Any) -> Message:
        queue = protos.Queue(name=name, **settings)
        parent = name.rpartition("/queues/")[0]
        return self.call("CreateQueue", parent=parent, queue=queue)

    def create(self, task_id: str = "", url: str = "http://127.0.0.1/", **fields: Any) -> Message:
        """Create a task for an HTTP target, unless `fields` describe another one."""
        if "app_engine_http_request" not in fields:
            request = fields.pop("http_request", {})
            fields["http_request"] = {"url": url, **request}
        task = protos.Task(name=f"{QUEUE}/tasks/{task_id}" if task_id else "", **fields)
        return self.call("CreateTask", parent=QUEUE, task=task)

    def get(self, task_id: str, view: Any = 0) -> Message:
        return self.call("GetTask", name=f"{QUEUE}/tasks/{task_id}", response_view=view)

    def begin(self, task_id: str) -> Attempt:
        with self.storage.change() as tables:
            number, queue = find_queue(tables, QUEUE)
            row = tables.task(number, task_id)
            assert row is not None
            return attempts.begin(tables, queue, row, self.clock())

    def finish(self, attempt: Attempt, answer: Answer) -> None:
        with self.storage.change() as tables:
            attempts.finish(tables, attempt, answer, self.clock())

    def fail(self, task_id: str, status: int = 400) -> float:
        """Let an attempt fail. Return the seconds until the next one."""
        self.finish(self.begin(task_id), Answer(status=status))
        scheduled = protos.microseconds(self.get(task_id).schedule_time)
        return (scheduled - self.clock()) / SECOND
