"""The official client, over each of its transports."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import tasks_v2beta2, tasks_v2beta3
from google.cloud.tasks_v2 import CloudTasksClient, HttpMethod, Queue, Task
from google.protobuf import field_mask_pb2

from tests.contract.emulator.tasks.conftest import CLIENTS, LOCATION, QUEUE, Bench, grpc_client
from userlock_emulator import tasks


@pytest.fixture(params=list(CLIENTS))
def client(tasks_emulator: tasks.CloudTasks, request: pytest.FixtureRequest) -> Any:
    return CLIENTS[request.param](tasks_emulator.host)


@pytest.fixture
def paused(client: Any) -> Any:
    client.create_queue(parent=LOCATION, queue={"name": QUEUE})
    client.pause_queue(name=QUEUE)
    return client


def described(**request: Any) -> dict[str, Any]:
    return {"http_request": {"url": "http://127.0.0.1:9/", **request}}


def test_queues(client: Any) -> None:
    created = client.create_queue(
        parent=LOCATION, queue={"name": QUEUE, "retry_config": {"max_attempts": 5}}
    )
    assert (created.state, created.retry_config.max_attempts) == (Queue.State.RUNNING, 5)
    assert client.get_queue(name=QUEUE) == created
    assert client.pause_queue(name=QUEUE).state == Queue.State.PAUSED
    assert client.resume_queue(name=QUEUE).state == Queue.State.RUNNING
    changed = client.update_queue(
        queue={"name": QUEUE, "rate_limits": {"max_dispatches_per_second": 7}},
        update_mask=field_mask_pb2.FieldMask(paths=["rate_limits.max_dispatches_per_second"]),
    )
    assert changed.rate_limits.max_dispatches_per_second == 7
    assert changed.retry_config.max_attempts == 5
    assert client.purge_queue(name=QUEUE).purge_time is not None
    for name in "cba":
        client.create_queue(parent=LOCATION, queue={"name": f"{LOCATION}/queues/{name}"})
    pages = client.list_queues(request={"parent": LOCATION, "page_size": 3}).pages
    listed = [[queue.name[-1] for queue in page.queues] for page in pages]
    assert listed == [["a", "b", "c"], ["q"]]
    client.delete_queue(name=QUEUE)
    with pytest.raises(exceptions.NotFound, match="Queue does not exist"):
        client.get_queue(name=QUEUE)


def test_tasks(paused: Any) -> None:
    request = {
        "parent": QUEUE,
        "task": described(body=b"\x00\xff", http_method=HttpMethod.PUT, headers={"A": "b"}),
        "response_view": Task.View.FULL,
    }
    task = paused.create_task(request=request)
    assert task.http_request.body == b"\x00\xff"
    assert paused.get_task(name=task.name).http_request.body == b""
    full = {"name": task.name, "response_view": Task.View.FULL}
    assert paused.get_task(request=full) == task
    names = {
        task.name,
        *(paused.create_task(parent=QUEUE, task=described()).name for _ in range(4)),
    }
    pages = paused.list_tasks(request={"parent": QUEUE, "page_size": 2}).pages
    listed = [[each.name for each in page.tasks] for page in pages]
    assert [len(page) for page in listed] == [2, 2, 1]
    assert {name for page in listed for name in page} == names
    paused.delete_task(name=task.name)
    with pytest.raises(exceptions.NotFound, match="no longer exists"):
        paused.get_task(name=task.name)


@pytest.mark.skipif(
    not hasattr(CloudTasksClient, "batch_create_tasks"), reason="this release has no batches"
)
def test_batches(paused: Any) -> None:
    requests = [
        {"parent": QUEUE, "task": task} for task in (described(), described(url="x"), described())
    ]
    operation = paused.batch_create_tasks(request={"parent": QUEUE, "requests": requests})
    created = operation.result().tasks
    assert len(created) == 2
    assert list(operation.metadata.failed_requests) == [1]
    assert paused.get_operation(request={"name": operation.operation.name}).done
    names = [task.name for task in created]
    paused.batch_delete_tasks(request={"parent": QUEUE, "names": names}).result()
    assert not list(paused.list_tasks(parent=QUEUE))


def test_deadlines_over_thirty_seconds(bench: Bench) -> None:
    bench.client.pause_queue(name=QUEUE)
    text = "The deadline cannot be more than 30s in the future"
    with pytest.raises(exceptions.BadRequest, match=text):
        bench.client.create_task(parent=QUEUE, task=described(), timeout=40)
    assert not list(bench.client.list_tasks(parent=QUEUE))
    bench.client.create_task(parent=QUEUE, task=described(), timeout=30)
    bench.client.get_queue(name=QUEUE, timeout=40)


def test_first_queues() -> None:
    with tasks.start(queues=[f"{QUEUE},max-attempts=3,min-backoff=1s"]) as server:
        client = grpc_client(server.host)
        assert client.get_queue(name=QUEUE).retry_config.max_attempts == 3
        client.delete_queue(name=QUEUE)
        server.reset()
        found = client.get_queue(name=QUEUE)
        assert (found.state, found.retry_config.max_attempts) == (Queue.State.RUNNING, 3)
        client.transport.close()
    with pytest.raises(ValueError, match="no setting"):
        tasks.start(queues=[f"{QUEUE},attempts=3"])


@pytest.mark.parametrize("version", [tasks_v2beta3, tasks_v2beta2])
@pytest.mark.parametrize("over", ["grpc", "rest"])
def test_the_clients_of_the_betas(
    tasks_emulator: tasks.CloudTasks, version: Any, over: str
) -> None:
    transports = version.services.cloud_tasks.transports
    if over == "grpc":
        channel = grpc.insecure_channel(tasks_emulator.host)
        transport = transports.CloudTasksGrpcTransport(channel=channel)
    else:
        transport = transports.CloudTasksRestTransport(
            host=tasks_emulator.host, url_scheme="http", credentials=AnonymousCredentials()
        )
    client = version.CloudTasksClient(transport=transport)
    created = client.create_queue(parent=LOCATION, queue={"name": QUEUE})
    assert client.get_queue(name=QUEUE) == created
    client.pause_queue(name=QUEUE)
    task = client.create_task(parent=QUEUE, task=described(headers={"A": "b"}))
    assert [each.name for each in client.list_tasks(parent=QUEUE)] == [task.name]
    client.delete_task(name=task.name)
    # The same queue for the clients of all versions.
    assert grpc_client(tasks_emulator.host).get_queue(name=QUEUE).name == QUEUE
    client.delete_queue(name=QUEUE)
    with pytest.raises(exceptions.NotFound):
        client.get_queue(name=QUEUE)
