"""The relay: every byte, in both directions, and no process left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

import userlock_emulator
from sample_app.stack import ports
from tests.contract.emulator.process import ROOT, EmulatorProcess
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator import Limits
from userlock_emulator.port import relay
from userlock_emulator.port.front import Front
from userlock_emulator.sockets import listen

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# More than all the buffers in between hold.
MANY_BYTES = 64 * 2**20


class Behind:
    """A relay, with a listening socket in place of gRPC's server."""

    def __init__(self) -> None:
        self.grpc = listen("127.0.0.1", 0)
        self.grpc.settimeout(10)
        listener = listen("127.0.0.1", 0)
        self.address = listener.getsockname()
        self.taken: list[socket.socket] = []
        self.front = Front(listener, self.grpc.getsockname()[1], self.taken.append)

    def connect(self, begins: bytes = b"") -> socket.socket:
        client = socket.create_connection(self.address, timeout=10)
        client.sendall(begins)
        return client

    def accept(self) -> socket.socket:
        server, _ = self.grpc.accept()
        server.settimeout(10)
        return server

    def close(self) -> None:
        self.front.stop()
        for each in (self.grpc, *self.taken):
            each.close()


@pytest.fixture
def behind() -> Iterator[Behind]:
    behind = Behind()
    yield behind
    behind.close()


def receive(sock: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        data = sock.recv(min(65536, count - len(received)))
        assert data, f"closed after {len(received)} of {count} bytes"
        received += data
    return bytes(received)


@pytest.mark.parametrize("upwards", [True, False])
def test_a_slow_reader_gets_everything(behind: Behind, upwards: bool) -> None:
    """Meanwhile the other direction continues, and so do other clients."""
    with behind.connect(PREFACE) as client, behind.accept() as server:
        receive(server, len(PREFACE))
        source, target = (client, server) if upwards else (server, client)
        sent = os.urandom(2**20) * (MANY_BYTES // 2**20)
        sending = Started(lambda: source.sendall(sent))
        target.sendall(b"other way")
        assert receive(source, 9) == b"other way"
        with behind.connect(PREFACE), behind.accept() as another:
            assert receive(another, len(PREFACE)) == PREFACE
        assert not sending.done, "the buffers hold everything: this shows nothing"
        assert receive(target, len(sent)) == sent
        sending.result()
        server.close()
        assert client.recv(1) == b""


def test_other_connections_are_handed_over_unread(behind: Behind) -> None:
    with behind.connect(b"POST / HTTP/1.1\r\n") as client:
        wait_until(lambda: behind.taken)
        (taken,) = behind.taken
        assert receive(taken, 17) == b"POST / HTTP/1.1\r\n"
        # Directly: the relay may end.
        behind.front.stop()
        taken.sendall(b"HTTP/1.1 200 OK\r\n")
        assert receive(client, 17) == b"HTTP/1.1 200 OK\r\n"


def test_connections_that_begin_letter_by_letter(behind: Behind) -> None:
    """ "P" and "PR" may become anything; other clients do not wait for a slow one."""
    behind.connect().close()  # it leaves at once
    with behind.connect(b"P") as slow, behind.connect(b"PR") as slower:
        with behind.connect(PREFACE), behind.accept() as server:
            assert receive(server, 3) == b"PRI"
        slow.sendall(b"OST")
        wait_until(lambda: behind.taken)
        assert receive(behind.taken[0], 4) == b"POST"
        slower.sendall(b"I *")
        with behind.accept() as server:
            assert receive(server, 5) == b"PRI *"


def test_without_grpc_behind_it_the_client_is_sent_away(behind: Behind) -> None:
    behind.grpc.close()
    # A reset, if its data was not read.
    with behind.connect(PREFACE) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


def test_it_does_not_outlive_an_emulator_that_is_killed() -> None:
    with EmulatorProcess() as process:
        port = int(process.host.rpartition(":")[2])
        process.stop(signal.SIGKILL)
        assert process.process.stdout is not None
        assert process.process.stdout.read().endswith("\n"), "the emulator's output is closed"
        wait_until(lambda: ports.is_free(port))


def test_when_it_is_killed_another_one_takes_its_place(caplog: pytest.LogCaptureFixture) -> None:
    request = b"GET / HTTP/1.1\r\n\r\n"
    with userlock_emulator.start(limits=Limits(max_connections=3)) as running:
        address = running._port._front._listener.getsockname()
        with contextlib.ExitStack() as stack:

            def connect() -> bytes:
                client = stack.enter_context(socket.create_connection(address, timeout=10))
                client.sendall(request)
                return client.recv(1000)

            for _ in range(2):
                assert connect().startswith(b"HTTP/1.1 200")
                killed = running._port._front._process
                killed.kill()
                killed.wait()
            # Those that connect meanwhile are served; those before are counted.
            assert connect().startswith(b"HTTP/1.1 200")
            assert connect().startswith(b"HTTP/1.1 503")
    assert caplog.text.count("has ended (signal 9): restarting it") == 2
    assert ports.is_free(address[1])


def test_when_it_cannot_be_started_clients_are_sent_away(
    behind: Behind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(relay, "__file__", "/missing")
    behind.front._process.kill()
    wait_until(lambda: "clients can no longer connect" in caplog.text)
    behind.front._thread.join()
    with pytest.raises(ConnectionRefusedError):
        behind.connect()


FORKS = """
import http.client, os, signal, sys, userlock_emulator

def main():
    with userlock_emulator.start() as server:
        child = os.fork()
        if not child:
            {child}
        {parent}
        connection = http.client.HTTPConnection(server.host)
        connection.request("GET", "/")
        print(connection.getresponse().status, child, server.host, flush=True)
        {afterwards}

main()
"""


@pytest.mark.parametrize("child", ["return sys.exit()", "os.close(1), os.close(2), signal.pause()"])
def test_forks(child: str) -> None:
    """It outlives a fork that exits, and not the emulator for a fork that lives on."""
    lives_on = "pause" in child
    completed = subprocess.run(
        [
            sys.executable,
            "-c",
            FORKS.format(
                child=child,  # leaves the block, and runs the exit handlers of a process
                parent="" if lives_on else "os.waitpid(child, 0)",
                afterwards="os.kill(os.getpid(), signal.SIGKILL)" if lives_on else "",
            ),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    status, pid, host = completed.stdout.split()
    try:
        assert status == "200"
        wait_until(lambda: ports.is_free(int(host.rpartition(":")[2])))
    finally:
        if lives_on:
            os.kill(int(pid), signal.SIGKILL)
