"""Servers that repeat a command in their error: neither a password nor a hidden id comes back."""

from __future__ import annotations

import contextlib
import logging
import socket
import traceback
import uuid
from collections.abc import Callable

import pytest

import userlock
from tests.faults.hostile import real_server
from tests.faults.proxy import FaultProxy
from userlock import LockService
from userlock.admin import health
from userlock.admin import locks as snapshot
from userlock.errors import LockServiceUnavailable
from userlock.lock.store import StoreUnavailable

PASSWORD = "s3cretpw"
USER = "b0b"
LOCK_ID = "ann.smith@example.com"

Echo = Callable[[bytes], bytes]


class EchoServer(FaultProxy):
    """A real server, but for the commands that it answers by an echo of them."""

    def __init__(self, target_port: int, command: bytes, echo: Echo) -> None:
        super().__init__(target_port)
        self.command = command
        self.echo = echo

    def _pass(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        if self.command not in data:
            return super()._pass(data, client, server)
        with contextlib.suppress(OSError):
            client.sendall(self.echo(data))
        return False


def like_redis(data: bytes) -> bytes:
    """Answer as Redis does for a command that was renamed."""
    name, *arguments = [part for part in data.split(b"\r\n") if part and part[:1] not in b"*$"]
    repeated = b"".join(b"'%b' " % each for each in arguments)[:128]
    return b"-ERR unknown command '%b', with args beginning with: %b\r\n" % (name, repeated)


ECHOES: dict[str, list[Echo]] = {
    "redis": [like_redis, lambda data: like_redis(data).replace(b"'", b"`")],
    "memcached": [
        lambda data: b"SERVER_ERROR " + data,
        lambda data: b"CLIENT_ERROR " + data,
        lambda data: b"VALUE " + data,
        lambda data: data,
    ],
}
COMMANDS = {"redis": (b"AUTH", b"SET", b"EVAL", b"SCAN"), "memcached": (b"ms ", b"mg ", b"lru_cr")}


def said_by(service: LockService, *, examined: bool) -> list[str]:
    """Do all that asks the server; return all texts of the errors."""
    texts = []

    def note(action: Callable[[], object]) -> None:
        try:
            texts.append(str(action()))
        except (LockServiceUnavailable, StoreUnavailable) as error:
            texts.append("".join(traceback.format_exception(error)) + repr(error))

    note(lambda: service.release(service.acquire(LOCK_ID, wait_timeout=0)))
    note(lambda: service.holder(LOCK_ID))
    note(lambda: service.break_lock(LOCK_ID, by="me"))
    note(lambda: service.acquire("somebody else", wait_timeout=0))
    note(lambda: snapshot.take(service, []).note)
    if examined:
        note(lambda: health.examine(service.store))
    return texts


@pytest.mark.parametrize(
    ("kind", "command", "show_ids"),
    [
        *((kind, each, "hashed") for kind in COMMANDS for each in COMMANDS[kind]),
        ("redis", b"AUTH", "plain"),
        ("redis", b"SCAN", "masked"),
        ("memcached", b"lru_cr", "masked"),
    ],
)
def test_an_echo_shows_neither_a_password_nor_a_hidden_id(
    request: pytest.FixtureRequest,
    kind: str,
    command: bytes,
    show_ids: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    userlock.configure(show_ids=show_ids, id_key="key" if show_ids == "hashed" else None)
    real = real_server(request, kind)
    secret = f"{USER}:{PASSWORD}@" if command == b"AUTH" else ""
    scheme = "memcache" if kind == "memcached" else "redis"
    examined = show_ids == "masked"
    for echo in ECHOES[kind]:
        with EchoServer(real.port, command, echo) as server:
            url = f"{scheme}://{secret}{server.address}?prefix={uuid.uuid4().hex}"
            service = LockService.from_url(url, outage="fail")
            said = "\n".join((*said_by(service, examined=examined), *caplog.messages))
            service.close()
        examined = False  # it takes seconds
        assert PASSWORD not in said
        if show_ids != "plain":
            assert USER not in said
            assert LOCK_ID not in said
