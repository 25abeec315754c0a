"""One emulator for all contract tests, emptied before each."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import grpc
import pytest
from google.cloud import tasks_v2beta2, tasks_v2beta3  # noqa: F401

import userlock_emulator

# Both servers, and the versions of Cloud Tasks above: what an inner pytest imports first is
# forgotten after it, but for its messages.
import userlock_emulator.datastore.server
import userlock_emulator.tasks.server
from tests.unit.emulator.builders import PROJECT
from tests.unit.emulator.subject import Caller
from userlock_emulator.datastore import protos
from userlock_emulator.datastore.protos import Message

SERVICE = "/google.datastore.v1.Datastore/"


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)


def ask(
    host: str,
    method: str,
    path: str,
    body: str | bytes | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Answer:
    with contextlib.closing(http.client.HTTPConnection(host, timeout=30)) as connection:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read().decode())


class Stub(Caller):
    """The service's RPCs on a plain channel: request and response messages, gRPC errors."""

    def __init__(self, host: str) -> None:
        self.channel = grpc.insecure_channel(host, options=[("grpc.use_local_subchannel_pool", 1)])

    def call(self, rpc: str, request: Message, timeout_seconds: float = 20) -> Message:
        method: Callable[..., Any] = self.channel.unary_unary(
            SERVICE + rpc,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(protos, f"{rpc}Response").FromString,
        )
        return method(request, timeout=timeout_seconds, wait_for_ready=True)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> Stub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture(scope="session")
def running() -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start(project=PROJECT, concurrency_mode="optimistic") as server:
        yield server


@pytest.fixture
def server(
    running: userlock_emulator.Emulator, monkeypatch: pytest.MonkeyPatch
) -> userlock_emulator.Emulator:
    """Provide an empty emulator, which the client libraries find through the environment."""
    running.reset()
    for name, setting in running.env.items():
        monkeypatch.setenv(name, setting)
    return running


@pytest.fixture
def stub(server: userlock_emulator.Emulator) -> Iterator[Stub]:
    with Stub(server.host) as stub:
        yield stub
