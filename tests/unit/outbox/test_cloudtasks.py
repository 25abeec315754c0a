"""Requests to Cloud Tasks, and the meaning of its answers; the transport is one of the tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("google.cloud.tasks_v2")

import grpc
from google.cloud import tasks_v2

from userlock.outbox.engines import Wake, cloudtasks
from userlock.outbox.engines.cloudtasks import CloudTasksEngine, parse
from userlock.testing import ManualClock

ACCOUNT = "jobs@shop.iam.gserviceaccount.com"
QUEUE = "cloudtasks://shop/here/jobs"
HTTP = f"{QUEUE}?target=https://shop.example&service_account={ACCOUNT}"
PARENT = "projects/shop/locations/here/queues/jobs"


class Failure(Exception):
    """An error as gRPC has it."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "in words"


class Call:
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def exception(self) -> Failure | None:
        return None if self._code is grpc.StatusCode.OK else Failure(self._code)


class Transport:
    """Notes requests and their time-outs; answers with codes, by the number of the request."""

    def __init__(self) -> None:
        self.codes: dict[int, grpc.StatusCode] = {}
        self.requests: list[Any] = []
        self.timeouts: list[float] = []
        self.metadata: list[Any] = []
        self.opened = self.closed = 0
        self.noted: Callable[[], object] = lambda: None

    def open(self) -> Transport:
        self.opened += 1
        return self

    @property
    def create_task(self) -> Transport:
        return self

    def future(self, request: Any, timeout: float, metadata: Any) -> Call:
        code = self.codes.get(len(self.requests), grpc.StatusCode.OK)
        self.requests.append(request)
        self.timeouts.append(timeout)
        self.metadata.append(metadata)
        self.noted()
        return Call(code)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def transport() -> Transport:
    return Transport()


def engine(url: str, transport: Transport, clock: ManualClock) -> CloudTasksEngine:
    return CloudTasksEngine(parse(url), make_transport=transport.open, clock=clock)


def test_a_task_for_an_http_target(transport: Transport, clock: ManualClock) -> None:
    assert engine(HTTP, transport, clock).wake([Wake("the-key", "name-1")], 0.3) == [None]
    (request,) = transport.requests
    assert request == tasks_v2.CreateTaskRequest(
        parent=PARENT,
        task=tasks_v2.Task(
            name=f"{PARENT}/tasks/name-1",
            http_request=tasks_v2.HttpRequest(
                url="https://shop.example/userlock/jobs",
                http_method=tasks_v2.HttpMethod.POST,
                headers={"Content-Type": "text/plain"},
                body=b"the-key",
                oidc_token=tasks_v2.OidcToken(
                    service_account_email=ACCOUNT,
                    audience="https://shop.example/userlock/jobs",
                ),
            ),
        ),
    )
    assert dict(transport.metadata[0])["x-goog-request-params"] == (
        "parent=projects/shop/locations/here/queues/jobs"
    )


@pytest.mark.parametrize("service", ["", "worker"])
def test_a_task_for_app_engine(transport: Transport, clock: ManualClock, service: str) -> None:
    url = f"{QUEUE}?service={service}" if service else QUEUE
    assert engine(url, transport, clock).wake([Wake("the-key", "name-1")], 0.3) == [None]
    task = transport.requests[0].task
    assert "schedule_time" not in task
    sent = task.app_engine_http_request
    assert (sent.relative_uri, sent.body) == ("/userlock/jobs", b"the-key")
    assert sent.http_method == tasks_v2.HttpMethod.POST
    assert sent.app_engine_routing.service == service


@pytest.mark.parametrize(
    ("delay", "least", "most"),
    [
        (1.5, 1.5, 2.0),
        (3600, 3600, 3601),
        (30 * 86_400, 29.9 * 86_400, 30 * 86_400 - 60),  # the service refuses later ones
    ],
)
def test_a_delayed_task_comes_no_earlier(
    transport: Transport, clock: ManualClock, delay: float, least: float, most: float
) -> None:
    engine(HTTP, transport, clock).wake([Wake("a", "b", delay)], 0.3)
    after = transport.requests[0].task.schedule_time.timestamp() - clock.wall()
    assert least <= after <= most


def test_each_message_has_its_own_error(transport: Transport, clock: ManualClock) -> None:
    """Of all codes of gRPC, one besides OK says that the service has the task."""
    codes = list(grpc.StatusCode)
    transport.codes = dict(enumerate(codes))
    messages = [Wake("a", f"name-{number}") for number in range(len(codes))]
    errors = engine(HTTP, transport, clock).wake(messages, 0.3)
    taken = {code for code, error in zip(codes, errors, strict=True) if error is None}
    assert taken == {grpc.StatusCode.OK, grpc.StatusCode.ALREADY_EXISTS}
    assert len(transport.requests) == len(codes), "nothing is sent again within the time"
    for code, error in zip(codes, errors, strict=True):
        assert error is None or str(error) == f"Cloud Tasks, queue jobs: {code.name}: in words"


@pytest.mark.parametrize("timeout", [0.001, 0.3, 10, 500])
def test_the_deadline_is_one_that_the_service_takes(
    transport: Transport, clock: ManualClock, timeout: float
) -> None:
    engine(HTTP, transport, clock).send([Wake("a", "b")], {}, clock.now() + timeout)
    assert min(timeout, 5) <= transport.timeouts[0] <= 30


def test_a_message_that_waited_for_the_connection_is_sent_all_the_same(
    transport: Transport, clock: ManualClock
) -> None:
    """Its caller has gone on, with an error: the relay's message has the same name."""
    connected, sent = threading.Event(), threading.Event()

    def connect() -> Transport:
        connected.wait()
        return transport

    transport.noted = sent.set
    slow = CloudTasksEngine(parse(HTTP), make_transport=connect, clock=clock)
    assert "no answer within 0.01 s" in str(slow.wake([Wake("a", "b")], 0.01)[0])
    connected.set()
    assert sent.wait(10)
    assert slow.wake([Wake("a", "b")], 5) == [None]
    assert len({each.task.name for each in transport.requests}) == 1


def test_the_service_is_connected_to_with_the_channels_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Transport:
        def __init__(self, channel: Callable[..., Any]) -> None:
            self.made = channel("cloudtasks.googleapis.com:443", options=[("theirs", 1)])

        @staticmethod
        def create_channel(host: str, **given: Any) -> Any:
            return host, given["options"]

    monkeypatch.delenv(cloudtasks.EMULATOR_VARIABLE, raising=False)
    monkeypatch.setattr(cloudtasks, "CloudTasksGrpcTransport", Transport)
    assert cloudtasks.connect_to_service().made == (
        "cloudtasks.googleapis.com:443",
        [("theirs", 1), *cloudtasks._CHANNEL_OPTIONS],
    )


def test_one_connection_which_is_closed(transport: Transport, clock: ManualClock) -> None:
    found = engine(HTTP, transport, clock)
    assert transport.opened == 0, "connected before there is a message"
    for number in range(3):
        found.wake([Wake("a", f"name-{number}")], 0.3)
    found.close()
    assert (transport.opened, transport.closed) == (1, 1)
