"""Bounds on clients of the embedded server: connections, turns, commands that never arrive."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from tests.connections import ended, is_open
from tests.contract.memcache.test_server import connect, receive
from tests.waiting import wait_until
from userlock_emulator import memcache
from userlock_emulator.limits import Limits

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "begin", [b"", b"g", b"get k", b"set k 0 0 10\r\nabc", b"mn\r\nset k 0 0 10\r\n"]
)
def test_half_a_command_is_hung_up_on(begin: bytes) -> None:
    with (
        memcache.start(limits=Limits(request_seconds=0.2)) as hurried,
        memcache.start(limits=Limits(idle_seconds=0.1)) as patient,
        connect(patient) as waiting,
        connect(hurried) as late,
    ):
        for client in (waiting, late):
            client.sendall(begin)
            if begin.startswith(b"mn"):
                assert receive(client, 4) == b"MN\r\n"
        assert ended(late)
        assert is_open(waiting), "the negative control"


def test_bytes_alone_do_not_extend_the_time() -> None:
    with memcache.start(limits=Limits(request_seconds=0.3)) as server, connect(server) as client:
        client.sendall(b"set k 0 0 1000000\r\n")
        client.settimeout(0.02)

        def send_another() -> bool:
            try:
                client.sendall(b"a")
                return bool(client.recv(1))
            except TimeoutError:
                return True
            except OSError:
                return False

        while send_another():
            pass


def test_connections_are_bounded() -> None:
    with memcache.start(limits=Limits(max_connections=3)) as server, contextlib.ExitStack() as all_:
        clients = [all_.enter_context(connect(server)) for _ in range(3)]
        for client in clients:
            client.sendall(b"mn\r\n")
            assert receive(client, 4) == b"MN\r\n"
        with connect(server) as refused:
            assert refused.recv(100) == b"ERROR Too many open connections\r\n"
            assert ended(refused)
        clients[0].close()

        def is_served() -> bool:
            with connect(server) as another, contextlib.suppress(OSError):
                another.sendall(b"mn\r\n")
                return another.recv(4) == b"MN\r\n"
            return False

        wait_until(is_served)


@pytest.mark.parametrize(
    "load",
    [b"get" + b" big" * 200_000 + b"\r\n", b"get big\r\n" * 5_000, b"mg big v\r\n" * 5_000],
    ids=["one get of many keys", "many gets", "many mgs"],
)
def test_clients_that_never_read_are_hung_up_on(load: bytes) -> None:
    limits = Limits(request_seconds=0.5)
    with memcache.start(limits=limits) as server, contextlib.ExitStack() as all_:
        quick = all_.enter_context(connect(server))
        quick.sendall(b"set big 0 0 900000\r\n" + b"x" * 900_000 + b"\r\n")
        assert receive(quick, 8) == b"STORED\r\n"
        clients = [all_.enter_context(connect(server)) for _ in range(20)]
        for client in clients:
            client.sendall(load)
            quick.sendall(b"mn\r\n")
            assert receive(quick, 4) == b"MN\r\n"
        # Without a read of theirs, which would be progress.
        wait_until(lambda: len(server._clients) == 1)
        quick.sendall(b"mn\r\n")
        assert receive(quick, 4) == b"MN\r\n"


@pytest.mark.parametrize("option", ["--max-connections", "--idle-timeout", "--request-timeout"])
def test_the_command_line_refuses_bounds_that_are_none(option: str) -> None:
    for value in ("0", "nan", "9" * 5000):
        done = subprocess.run(
            [sys.executable, "-m", "userlock_emulator.memcache", f"{option}={value}", "--port=0"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert option in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr) < 1500
