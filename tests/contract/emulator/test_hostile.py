"""Hostile requests over HTTP, by rule: each field of each RPC, headers, documents. No 500."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

import userlock_emulator
from tests.unit.emulator.builders import PROJECT
from userlock_emulator.datastore import protos
from userlock_emulator.datastore.faults import RPCS

pytestmark = pytest.mark.slow

NINES = "9" * 5000
VALUES: list[Any] = [
    NINES, f"-{NINES}", "9" * 19, 2**64, -1, 1e400, "NaN", f"{NINES}s", "\u0663", "", None, True,
    [], {}, f"{NINES}-01-01T00:00:00Z", "\ud800", "\x00", 1.5,
]  # fmt: skip
DEPTH = 4
Step = tuple[str, str]

DOCUMENTS = [
    b"[" * 100_000, b'{"a":' * 100_000, NINES.encode(), b"\xff\xfe", b'"\\ud800"', b"{", b"",
    *(
        b'{"fault": "delay", "seconds": %b}' % number
        for number in (b"1e400", b"NaN", b"-1", NINES.encode(), b"9" * 400)
    ),
    *(b'{"fault": "abort", "%b": %b}' % (name, b"9" * 4000) for name in (b"count", b"skip")),
    b'{"fault": ["a"]}', b'{"fault": {}}', b'{"fault": "abort", "kind": "\\ud800"}',
]  # fmt: skip
HEADERS = [
    b"Content-Length: " + NINES.encode(), b"Content-Length: x", b"Content-Length: -1",
    b"Content-Length: 1\r\nContent-Length: 2", b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3", b"Host: [", b"Host: [::1", b"Host: a b",
    b"Host: \xff", b"Host: 127.0.0.1:" + NINES.encode(), b"Host: 127.0.0.1:x",
    b"Origin: http://[", b"Origin: \xff", b"Origin: http://127.0.0.1:" + NINES.encode(),
    b"Host: a.localhost\r\nOrigin: https://a.localhost", b"Sec-Fetch-Site: \xff", b"nocolon",
    b": x", b" folded", b"X: " + b"a" * 70_000, b"\r\n".join(b"X%d: a" % n for n in range(200)),
    b"\r\n".join(b"X%d: " % n + b"a" * 900 for n in range(90)),
]  # fmt: skip
LINES = [
    b"", b"GET", b"GET /", b"GET / HTTP/9", b"GET / HTTP/1.x", b"G\xffT / HTTP/1.1",
    b"GET / HTTP/1.1 more", b"OPTIONS * HTTP/1.1", b"BREW / HTTP/1.1", b"\x00" * 99,
    b"GET " + b"/" * 70_000 + b" HTTP/1.1", b"GET /faults/" + NINES.encode() + b" HTTP/1.1",
]  # fmt: skip


def fields(of: Descriptor, path: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """Give the path to each field of a message, and how it repeats."""
    for field in of.fields:
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            kind, inner = "map", inner.fields_by_name["value"].message_type
        else:
            kind = "list" if field.is_repeated else "one"
        here = (*path, (field.json_name, kind))
        yield here
        if inner is not None and len(here) <= DEPTH:
            yield from fields(inner, here)


def document(path: tuple[Step, ...], value: Any) -> Any:
    for name, kind in reversed(path):
        value = {name: {"one": value, "list": [value], "map": {"a": value}}[kind]}
    return value


@pytest.fixture
def connection(server: userlock_emulator.Emulator) -> Iterator[http.client.HTTPConnection]:
    with contextlib.closing(http.client.HTTPConnection(server.host, timeout=20)) as connection:
        yield connection


def post(connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[int, bytes]:
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def is_clean(status: int) -> bool:
    return status < 500 or status == 501


@pytest.mark.parametrize("rpc", RPCS)
def test_each_field_of_each_rpc(connection: http.client.HTTPConnection, rpc: str) -> None:
    path = f"/v1/projects/{PROJECT}:{rpc[0].lower()}{rpc[1:]}"
    tried = 0
    for field in fields(getattr(protos, f"{rpc}Request").DESCRIPTOR):
        for value in VALUES:
            body = json.dumps(document(field, value)).encode()
            status, said = post(connection, path, body)
            assert is_clean(status), (field, repr(value)[:40], said[:200])
            tried += 1
    assert tried > 3 * len(VALUES)


@pytest.mark.parametrize("path", ["/faults", "/import", "/reset", f"/v1/projects/{PROJECT}:lookup"])
def test_each_document(
    connection: http.client.HTTPConnection, server: userlock_emulator.Emulator, path: str
) -> None:
    for body in DOCUMENTS:
        status, said = post(connection, path, body)
        assert is_clean(status), (body[:40], said[:200])
        server.faults.clear()


def talk(server: userlock_emulator.Emulator, sent: bytes) -> bytes:
    host, _, port = server.host.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(65536):
                received += data
        return received


def test_each_header_and_request_line(server: userlock_emulator.Emulator) -> None:
    for header in HEADERS:
        answer = talk(server, b"POST /reset HTTP/1.1\r\n" + header + b"\r\n\r\n")
        assert answer.split(b" ")[1] in (b"400", b"403", b"431"), (header[:40], answer[:200])
    for line in LINES:
        answer = talk(server, line + b"\r\n\r\n")
        assert answer.split(b" ")[1] in (b"400", b"404", b"414", b"501"), (line[:40], answer[:200])
    # The control: an ordinary request.
    answer = talk(server, b"POST /reset HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
