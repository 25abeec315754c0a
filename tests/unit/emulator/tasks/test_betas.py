"""Cloud Tasks v2beta3 and v2beta2: the same queues and tasks under other names."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format

from tests.unit.emulator.subject import refused
from tests.unit.emulator.tasks.subject import LOCATION, QUEUE, Subject
from userlock_emulator.port.status import Code
from userlock_emulator.tasks import betas
from userlock_emulator.tasks.rpcs import SERVICE

#: By version: a queue and a task as it writes them, and an update of the queue.
WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "v2beta3": (
        {
            "appEngineHttpQueue": {"appEngineRoutingOverride": {"service": "s"}},
            "rateLimits": {"maxDispatchesPerSecond": 7.0, "maxConcurrentDispatches": 3},
            "retryConfig": {"maxAttempts": 5, "minBackoff": "1s"},
        },
        {
            "appEngineHttpRequest": {"relativeUri": "/x", "body": "AP8=", "headers": {"A": "b"}},
        },
        {"rateLimits": {"maxDispatchesPerSecond": 9.0}},
        "rateLimits.maxDispatchesPerSecond",
    ),
    "v2beta2": (
        {
            "appEngineHttpTarget": {"appEngineRoutingOverride": {"service": "s"}},
            "rateLimits": {"maxTasksDispatchedPerSecond": 7.0, "maxConcurrentTasks": 3},
            "retryConfig": {"unlimitedAttempts": True, "minBackoff": "1s"},
        },
        {
            "appEngineHttpRequest": {"relativeUrl": "/x", "payload": "AP8=", "headers": {"A": "b"}},
        },
        {"rateLimits": {"maxTasksDispatchedPerSecond": 9.0}},
        "rateLimits.maxTasksDispatchedPerSecond",
    ),
}


@pytest.fixture(params=list(WRITTEN))
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Service:
    def __init__(self, version: str) -> None:
        self.subject = Subject()
        (beta,) = (each for each in betas.BETAS if each.name == version)
        self.rpcs = betas.rpcs(beta, self.subject.services[SERVICE])

    def call(self, rpc: str, **document: Any) -> Any:
        run, request_class = self.rpcs[rpc]
        response = run(json_format.ParseDict(document, request_class()))
        return json_format.MessageToDict(response)


@pytest.fixture
def service(version: str) -> Service:
    return Service(version)


def stored_queue(service: Service) -> Any:
    return service.subject.call("GetQueue", name=QUEUE)


def part_of(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        return all(name in whole and part_of(part[name], whole[name]) for name in part)
    return bool(part == whole)


def test_queues_and_tasks(service: Service, version: str) -> None:
    queue, task, change, mask = WRITTEN[version]
    created = service.call("CreateQueue", parent=LOCATION, queue={"name": QUEUE, **queue})
    stored = stored_queue(service)
    if version == "v2beta2":
        assert stored.retry_config.max_attempts == -1
        assert created["retryConfig"].pop("maxAttempts") == -1
        queue = {**queue, "retryConfig": {"minBackoff": "1s"}}
    assert part_of(queue, created)
    assert stored.app_engine_routing_override.service == "s"
    assert stored.rate_limits.max_concurrent_dispatches == 3
    assert service.call("GetQueue", name=QUEUE, readMask="stats")["name"] == QUEUE
    updated = service.call("UpdateQueue", queue={"name": QUEUE, **change}, updateMask=mask)
    assert part_of(change, updated)
    assert stored_queue(service).rate_limits.max_concurrent_dispatches == 3
    assert service.call("PauseQueue", name=QUEUE)["state"] == "PAUSED"
    assert len(service.call("ListQueues", parent=LOCATION)["queues"]) == 1
    made = service.call("CreateTask", parent=QUEUE, task=task, responseView="FULL")
    assert part_of(task, made)
    (listed,) = service.call("ListTasks", parent=QUEUE, responseView="FULL")["tasks"]
    assert listed == made
    assert service.call("GetTask", name=made["name"], responseView="FULL") == made
    assert service.call("DeleteTask", name=made["name"]) == {}
    assert service.call("DeleteQueue", name=QUEUE) == {}


def test_what_a_task_has_been_through() -> None:
    service = Service("v2beta2")
    service.subject.create_queue()
    service.subject.create("t")
    service.subject.fail("t")
    task = service.call("GetTask", name=f"{QUEUE}/tasks/t")
    assert task["status"]["attemptDispatchCount"] == 1
    assert "dispatchTime" in task["status"]["firstAttemptStatus"]


def test_pull_queues_are_not_there(version: str, service: Service) -> None:
    service.subject.create_queue()
    pulled = [("CreateTask", {"parent": QUEUE, "task": {"pullMessage": {"payload": "AA=="}}})]
    if version == "v2beta2":
        queue = {"name": f"{QUEUE}2", "pullTarget": {}}
        pulled.append(("CreateQueue", {"parent": LOCATION, "queue": queue}))
    for rpc, document in pulled:
        with refused("pull queues", Code.UNIMPLEMENTED):
            service.call(rpc, **document)
    assert "LeaseTasks" not in service.rpcs


def test_each_rpc_of_v2_has_one_in_each_beta() -> None:
    """Apart from batches, whose results are v2's."""
    service = Subject().services[SERVICE]
    for beta in betas.BETAS:
        missing = set(service) - set(betas.rpcs(beta, service))
        assert missing <= {"BatchCreateTasks", "BatchDeleteTasks"}
