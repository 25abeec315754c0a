"""The embedded server on real sockets: starting, stopping, many and slow clients."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from pymemcache import Client

from userlock_emulator import memcache

_TIMEOUT_SECONDS = 10.0


def connect(server: memcache.Server) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=_TIMEOUT_SECONDS)


def receive(client: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        data = client.recv(256 * 1024)
        assert data, f"hung up after {bytes(received)!r}"
        received += data
    return bytes(received)


def test_start_listens_on_loopback_at_a_free_port_and_stop_hangs_up() -> None:
    before = set(threading.enumerate())
    with memcache.start() as server:
        assert server.address == f"127.0.0.1:{server.port}"
        client = connect(server)
        client.sendall(b"version\r\n")
        assert receive(client, 16) == b"VERSION 1.6.18\r\n"
    with client:
        assert client.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(server)
    assert not set(threading.enumerate()) - before
    server.stop()  # A second call is allowed.


def test_a_port_can_be_used_again_at_once() -> None:
    with memcache.start() as first, connect(first) as client:
        client.sendall(b"set k 0 0 1\r\nv\r\n")
        assert receive(client, 8) == b"STORED\r\n"
    with memcache.start(first.port) as second, connect(second) as client:
        client.sendall(b"get k\r\n")
        assert receive(client, 5) == b"END\r\n"


def test_ipv6() -> None:
    try:
        server = memcache.start(host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with server, socket.create_connection(("::1", server.port), timeout=_TIMEOUT_SECONDS) as client:
        assert server.address == f"[::1]:{server.port}"
        client.sendall(b"mn\r\n")
        assert receive(client, 4) == b"MN\r\n"


def test_a_client_that_leaves_within_a_data_block_stores_nothing(embedded: memcache.Server) -> None:
    with connect(embedded) as client:
        client.sendall(b"set k 0 0 10\r\nhalf")
    with connect(embedded) as client:
        client.sendall(b"get k\r\n")
        assert receive(client, 5) == b"END\r\n"


def test_a_client_that_does_not_read_delays_no_other(embedded: memcache.Server) -> None:
    size = 1_000_000
    value = b"x" * size
    with connect(embedded) as slow, connect(embedded) as quick:
        slow.sendall(b"set big 0 0 %d\r\n%b\r\n" % (size, value))
        assert receive(slow, 8) == b"STORED\r\n"
        # More than the sockets' buffers hold, so the server must wait for the client.
        slow.sendall(b"get" + b" big" * 20 + b"\r\nmn\r\n")
        for _ in range(3):
            quick.sendall(b"mn\r\n")
            assert receive(quick, 4) == b"MN\r\n"
        one = b"VALUE big 0 %d\r\n%b\r\n" % (size, value)
        answer = receive(slow, 20 * len(one) + len(b"END\r\nMN\r\n"))
        assert answer == one * 20 + b"END\r\nMN\r\n"


def test_quit_is_answered_by_hanging_up_after_the_replies(embedded: memcache.Server) -> None:
    with connect(embedded) as client:
        client.sendall(b"version\r\nquit\r\nversion\r\n")
        assert receive(client, 16) == b"VERSION 1.6.18\r\n"
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


def test_each_command_is_atomic_among_many_clients(embedded: memcache.Server) -> None:
    threads, rounds = 8, 100
    granted: list[int] = []
    with contextlib.closing(Client(embedded.address)) as first:
        first.set("n", b"0", noreply=False)

    def work() -> None:
        with contextlib.closing(Client(embedded.address, timeout=_TIMEOUT_SECONDS)) as client:
            for turn in range(rounds):
                client.incr("n", 1)
                if client.add(f"turn{turn}", b"mine", noreply=False):
                    granted.append(turn)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with contextlib.closing(Client(embedded.address)) as client:
        assert client.get("n") == b"%d" % (threads * rounds)
    assert sorted(granted) == list(range(rounds))


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "userlock_emulator.memcache", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_line_serves_until_a_signal(stop: signal.Signals) -> None:
    with command("--port", "0") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        announced = process.stdout.readline()
        match = re.fullmatch(r"memcached \(embedded\) listening on (127\.0\.0\.1:\d+)\n", announced)
        assert match is not None, announced
        with contextlib.closing(Client(match[1], timeout=_TIMEOUT_SECONDS)) as client:
            assert client.version() == b"1.6.18"
            process.send_signal(stop)
            assert process.wait(_TIMEOUT_SECONDS) == 0
        assert process.stdout.read() == ""
        assert process.stderr.read() == ""


def test_the_command_line_names_a_taken_port(embedded: memcache.Server) -> None:
    with command("--port", str(embedded.port)) as process:
        output, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
    assert process.returncode == 2
    assert output == ""
    assert errors == f"cannot listen on {embedded.address}: the port is taken\n"


@pytest.mark.parametrize("port", ["65536", "abc"])
def test_the_command_line_refuses_a_port_that_is_none(port: str) -> None:
    with command(f"--port={port}") as process:
        _, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
    assert process.returncode == 2
    assert "argument --port" in errors
    assert "Traceback" not in errors
