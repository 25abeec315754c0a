"""Bounds on clients: connections, threads, and time to send a request and read its reply."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator

import grpc
import pytest

import userlock_emulator
from tests.connections import ended, is_open
from tests.contract.emulator.conftest import SERVICE, Stub, ask
from tests.unit.emulator.builders import PROJECT, entity, key, value
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator import Limits
from userlock_emulator.datastore.protos import LookupRequest

pytestmark = pytest.mark.slow

LOOKUP = LookupRequest(project_id=PROJECT, keys=[key("K", 1)])
HALF = [
    b"",
    b"P",
    b"POST / HTTP/1.1\r\n",
    b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc",
    b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab",
]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def connect(server: userlock_emulator.Emulator, begin: bytes = b"") -> socket.socket:
    host, _, port = server.host.rpartition(":")
    client = socket.create_connection((host, int(port)), timeout=20)
    client.sendall(begin)
    return client


def status_of(server: userlock_emulator.Emulator, path: str = "/") -> int:
    return ask(server.host, "GET", path).status


@contextlib.contextmanager
def many(
    server: userlock_emulator.Emulator, count: int, begin: bytes
) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(server, begin)) for _ in range(count)]


def test_half_a_request_costs_no_thread_and_delays_nobody() -> None:
    with userlock_emulator.start(project=PROJECT) as server:
        assert status_of(server) == 200
        before = threading.active_count()
        with contextlib.ExitStack() as stack:
            for begin in HALF:
                stack.enter_context(many(server, 60, begin))
            assert status_of(server) == 200
            assert threading.active_count() <= before + 1
            stack.enter_context(Stub(server.host)).call("Lookup", LOOKUP)


def test_half_a_request_is_hung_up_on() -> None:
    """Also one that goes on arriving byte by byte."""
    with (
        userlock_emulator.start(limits=Limits(request_seconds=0.2)) as hurried,
        userlock_emulator.start(limits=Limits(request_seconds=1000, idle_seconds=0.1)) as patient,
        contextlib.ExitStack() as stack,
    ):
        waiting = [stack.enter_context(connect(patient, begin)) for begin in HALF]
        late = [stack.enter_context(connect(hurried, begin)) for begin in HALF]
        slow = stack.enter_context(connect(hurried, b"GET / HTTP/1.1\r\nX: "))
        slow.settimeout(0.02)
        with contextlib.suppress(ConnectionError):
            while True:
                slow.sendall(b"a")
                with contextlib.suppress(TimeoutError):
                    if not slow.recv(1):
                        break
        assert all(map(ended, late))
        assert all(map(is_open, waiting)), "the negative control"


def test_an_idle_connection_is_hung_up_on() -> None:
    request = b"GET / HTTP/1.1\r\n\r\n"
    with (
        userlock_emulator.start(limits=Limits(idle_seconds=0.2)) as hurried,
        userlock_emulator.start(limits=Limits(request_seconds=0.1)) as patient,
        connect(patient, request) as waiting,
        connect(hurried, request) as idle,
    ):
        assert waiting.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
        assert ended(idle)
        assert is_open(waiting), "the negative control"


def test_connections_are_bounded() -> None:
    """gRPC's, HTTP's and undecided ones together. A place that becomes free is used again."""
    with userlock_emulator.start(limits=Limits(max_connections=5)) as server:
        with (
            many(server, 2, PREFACE),
            many(server, 2, b"GET / HTTP/1.1\r\n\r\n"),
            connect(server, b"P"),
            connect(server) as refused,
        ):
            answer = refused.recv(1000)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"--max-connections" in answer
            with Stub(server.host) as stub:
                call = stub.channel.unary_unary(SERVICE + "Lookup").future(b"", timeout=20)
                assert call.code() is grpc.StatusCode.UNAVAILABLE

        def is_served() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return status_of(server) == 200
            return False

        wait_until(is_served)


def test_threads_are_bounded_and_faults_can_still_be_removed() -> None:
    with (
        userlock_emulator.start(project=PROJECT, limits=Limits(max_threads=3)) as server,
        Stub(server.host) as stub,
    ):
        path = f"/v1/projects/{PROJECT}:lookup"
        fault = server.faults.hold(rpc="Lookup", count=None)

        def over_http() -> int:
            return ask(server.host, "POST", path, json.dumps({"keys": []})).status

        asked = [Started(over_http) for _ in range(4)]
        asked += [Started(lambda: stub.call("Lookup", LOOKUP) and 200) for _ in range(4)]
        fault.wait(3)
        # Its threads are all busy. The requests beside the RPCs have their own.
        assert status_of(server, "/faults") == 200
        assert fault.hits == 3
        assert len(server._port._threads._threads) == 3
        server.faults.clear()
        for each in asked:
            assert each.result() in (200, 400)


def test_clients_that_never_read_delay_nobody_and_are_hung_up_on() -> None:
    with (
        userlock_emulator.start(project=PROJECT, limits=Limits(request_seconds=0.5)) as server,
        Stub(server.host) as stub,
    ):
        for number in range(1, 9):
            stub.put(entity(key("K", number), text="x" * 900))
            stub.put(entity(key("Large", number), blob=value(b"x" * 900_000, indexed=False)))
        body = json.dumps({"query": {"kind": [{"name": "Large"}]}}).encode()
        query = b"POST /v1/projects/%b:runQuery HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (
            PROJECT.encode(), len(body), body
        )  # fmt: skip
        for request in (query, b"GET /export HTTP/1.1\r\n\r\n"):
            with many(server, 20, request * 3) as clients:
                for _ in range(20):
                    stub.call("Lookup", LOOKUP, timeout_seconds=5)
                    assert status_of(server) == 200
                # None was served to its end: the server has given up first.
                wait_until(lambda: not server._port._web._tasks)
                assert all(map(ended, clients))


def test_a_slow_reader_gets_everything() -> None:
    """The control: one that reads, if slowly, is not hung up on."""
    with (
        userlock_emulator.start(project=PROJECT, limits=Limits(request_seconds=2)) as server,
        Stub(server.host) as stub,
    ):
        for number in range(1, 9):
            stub.put(entity(key("Large", number), blob=value(b"x" * 900_000, indexed=False)))
        with connect(server, b"GET /export HTTP/1.0\r\n\r\n") as client:
            received = 0
            while piece := client.recv(4096):
                received += len(piece)
        assert received > 8 * 900_000


@pytest.mark.parametrize("service", [SERVICE + "Lookup", "/grpc.health.v1.Health/Check"])
def test_half_a_request_over_grpc(service: str) -> None:
    """Without the message, that a thread waits for. Others are served meanwhile."""
    limits = Limits(max_threads=4, request_seconds=1000)
    with (
        userlock_emulator.start(project=PROJECT, limits=limits) as server,
        Stub(server.host) as stub,
        Stub(server.host) as other,
    ):
        never = threading.Event()

        def requests() -> Iterator[bytes]:
            never.wait()
            yield b""

        calls = [other.channel.stream_unary(service).future(requests()) for _ in range(4)]
        stub.call("Lookup", LOOKUP)
        cancelled = [call for call in calls if call.code() is grpc.StatusCode.CANCELLED]
        assert cancelled
        never.set()
