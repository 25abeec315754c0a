"""The relay's bounds, on a clock that is moved by hand."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from userlock_emulator.port.relay import Relay
from userlock_emulator.sockets import listen

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Bench:
    def __init__(self, max_connections: int = 3) -> None:
        self.now = 0.0
        self.grpc = listen("127.0.0.1", 0)
        self.listener = listen("127.0.0.1", 0)
        self.ours, theirs = socket.socketpair()
        self.open = contextlib.ExitStack()
        self.clients = contextlib.ExitStack()
        for each in (self.grpc, self.listener, self.ours, theirs):
            self.open.enter_context(each)
        self.relay = Relay(
            self.listener, theirs, self.grpc.getsockname()[1],
            max_connections=max_connections, request_seconds=10, now=lambda: self.now,
        )  # fmt: skip

    def connect(self, begin: bytes = b"") -> socket.socket:
        client = self.clients.enter_context(
            socket.create_connection(self.listener.getsockname(), timeout=10)
        )
        client.sendall(begin)
        self.steps()
        return client

    def steps(self, count: int = 5) -> None:
        for _ in range(count):
            assert self.relay.step()

    def close(self) -> None:
        self.clients.close()
        for _ in range(5):  # the relay closes its ends
            self.relay.step()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    with bench.open:
        yield bench
        bench.close()


@pytest.mark.parametrize("begin", [b"", b"P", b"PR"])
def test_a_client_that_does_not_begin_is_hung_up_on(bench: Bench, begin: bytes) -> None:
    client = bench.connect(begin)
    bench.now = 9.9
    bench.steps()
    assert bench.relay.connections == 1
    bench.now = 10.0
    bench.steps()
    assert bench.relay.connections == 0
    with contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


def test_a_client_that_does_not_read_its_reply_is_hung_up_on(bench: Bench) -> None:
    client = bench.connect(PREFACE)
    server, _ = bench.grpc.accept()
    with server:
        server.setblocking(False)

        def fill() -> None:
            full = 0
            while full < 20:
                try:
                    server.send(b"x" * 2**20)
                    full = 0
                except BlockingIOError:
                    full += 1
                bench.steps()

        fill()
        bench.now = 9.9
        # A little progress is a new deadline.
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while client.recv(2**16):
                pass
        fill()
        bench.now = 10.1
        bench.steps()
        assert bench.relay.connections == 1
        bench.now = 30.0
        bench.steps()
        assert bench.relay.connections == 0


@pytest.fixture
def _second_loopback() -> None:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.2", 0))
        except OSError:
            pytest.skip("this system has no second loopback address")


@pytest.mark.usefixtures("_second_loopback")
def test_grpc_is_told_the_port_of_the_client(bench: Bench) -> None:
    client = bench.connect(PREFACE)
    passed, address = bench.grpc.accept()
    bench.clients.enter_context(passed)
    assert address == ("127.0.0.2", client.getsockname()[1])


@pytest.mark.usefixtures("_second_loopback")
def test_a_port_that_is_taken_there_is_not_passed_on(bench: Bench) -> None:
    client = bench.clients.enter_context(
        socket.create_connection(bench.listener.getsockname(), timeout=10)
    )
    other = bench.clients.enter_context(socket.socket())
    other.bind(("127.0.0.2", client.getsockname()[1]))
    other.listen()
    client.sendall(PREFACE)
    bench.steps()
    passed, address = bench.grpc.accept()
    bench.clients.enter_context(passed)
    assert address[0] == "127.0.0.1"
    assert passed.recv(3) == b"PRI"
