"""One Cloud Tasks emulator for all tests, emptied before each; its clock is moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.tasks_v2 import CloudTasksClient, Task
from google.cloud.tasks_v2.services.cloud_tasks.transports import (
    CloudTasksGrpcTransport,
    CloudTasksRestTransport,
)

from tests.contract.emulator.tasks.target import Target
from userlock_emulator import tasks

LOCATION = "projects/p/locations/l"
QUEUE = f"{LOCATION}/queues/q"


def grpc_client(host: str) -> Any:
    channel = grpc.insecure_channel(host, options=[("grpc.use_local_subchannel_pool", 1)])
    return CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))


def rest_client(host: str) -> Any:
    transport = CloudTasksRestTransport(
        host=host, url_scheme="http", credentials=AnonymousCredentials()
    )
    return CloudTasksClient(transport=transport)


CLIENTS = {"grpc": grpc_client, "rest": rest_client}


class Bench:
    def __init__(
        self, server: tasks.CloudTasks, clock: tasks.ManualClock, client: Any, target: Target
    ) -> None:
        self.server = server
        self.clock = clock
        self.client = client
        self.target = target

    def create_queue(self, name: str = QUEUE, **settings: Any) -> None:
        self.client.create_queue(parent=LOCATION, queue={"name": name, **settings})

    def create(self, task_id: str = "", queue: str = QUEUE, **task: Any) -> Task:
        """Create a task for the target, unless another one is described."""
        if "app_engine_http_request" not in task:
            task["http_request"] = {"url": self.target.url, **task.get("http_request", {})}
        if task_id:
            task["name"] = f"{queue}/tasks/{task_id}"
        created: Task = self.client.create_task(parent=queue, task=task)
        return created

    def get(self, task_id: str, view: Any = Task.View.BASIC) -> Task:
        name = f"{QUEUE}/tasks/{task_id}"
        found: Task = self.client.get_task(request={"name": name, "response_view": view})
        return found

    def exists(self, task_id: str) -> bool:
        names = [task.name for task in self.client.list_tasks(parent=QUEUE)]
        return f"{QUEUE}/tasks/{task_id}" in names

    def settle(self) -> list[str]:
        """Wait until nothing can happen now. Return the ids of the tasks that have been sent."""
        self.server.wait_idle()
        return [each.task for each in self.target.received]

    def jump(self) -> float:
        """Move the clock to the next event. Return the seconds."""
        at = self.server.next_time
        assert at is not None
        before = self.clock()
        self.clock.advance_to(at)
        self.server.wait_idle()
        return (at - before) / 1_000_000


@contextmanager
def started(target: Target, **options: Any) -> Iterator[Bench]:
    """Start an emulator of the test's own, with one queue, in real time."""
    with tasks.start(queues=[QUEUE], **options) as server:
        client = grpc_client(server.host)
        yield Bench(server, tasks.ManualClock(), client, target)
        server.wait_empty(timeout_seconds=60)
        client.transport.close()


@pytest.fixture(scope="session")
def tasks_clock() -> tasks.ManualClock:
    return tasks.ManualClock()


@pytest.fixture(scope="session")
def tasks_emulator_options(tasks_clock: tasks.ManualClock) -> dict[str, Any]:
    return {"now": tasks_clock}


@pytest.fixture
def target() -> Iterator[Target]:
    with Target() as target:
        yield target


@pytest.fixture
def bench(
    tasks_emulator: tasks.CloudTasks, tasks_clock: tasks.ManualClock, target: Target
) -> Iterator[Bench]:
    client = grpc_client(tasks_emulator.host)
    bench = Bench(tasks_emulator, tasks_clock, client, target)
    bench.create_queue()
    yield bench
    client.transport.close()
