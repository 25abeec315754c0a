"""Hostile requests, by rule: fields of each RPC, headers, documents; bytes over gRPC. No 500."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor

import userlock_emulator
from tests.contract.emulator.conftest import SERVICE, Stub
from tests.unit.emulator.builders import PROJECT, key
from userlock_emulator.datastore import protos
from userlock_emulator.datastore.faults import RPCS

pytestmark = pytest.mark.slow

NINES = "9" * 5000
VALUES: list[Any] = [
    NINES, f"-{NINES}", "9" * 19, 2**64, -1, 1e400, "NaN", f"{NINES}s", "\u0663", "", None, True,
    [], {}, f"{NINES}-01-01T00:00:00Z", "\ud800", "\x00", 1.5,
    # Those that fit some field.
    0, 1, 7, 2**31, -(2**63), 2**63 - 1, "x", "x" * 1501, "AAAA", "a.b",
]  # fmt: skip
DEPTH = 4
LOOKUP = protos.LookupRequest(project_id=PROJECT, keys=[key("K", 1)])
_CODES = grpc.StatusCode
CLEAN = {
    *(_CODES.OK, _CODES.INVALID_ARGUMENT, _CODES.NOT_FOUND, _CODES.ALREADY_EXISTS),
    *(_CODES.FAILED_PRECONDITION, _CODES.ABORTED, _CODES.UNIMPLEMENTED),
}
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


def hostile_bytes(rpc: str) -> Iterator[bytes]:
    """Yield deep messages, and bytes by chance, of which most are none."""
    chance = random.Random(rpc)
    for deep in (30, 60, 99, 100, 5000):
        yield b"\x0a\x02" * deep
        nested = b""
        for _ in range(deep):
            nested = b"\x32" + _length(b"\x1a" + _length(b"\x12" + _length(nested)))
        yield b"\x12" + _length(b"\x12" + _length(nested))
    yield from (chance.randbytes(size) for size in range(1, 400))


def _length(data: bytes) -> bytes:
    size, head = len(data), b""
    while size > 127:
        head, size = head + bytes([size & 127 | 128]), size >> 7
    return head + bytes([size]) + data


@pytest.mark.parametrize("rpc", RPCS)
def test_bytes_over_grpc(stub: Stub, rpc: str, caplog: pytest.LogCaptureFixture) -> None:
    """No INTERNAL, no UNKNOWN, no traceback, and the connection lives."""
    call = stub.channel.unary_unary(SERVICE + rpc)
    # gRPC's server used to lose a stream for each message that cannot be parsed: 256 in all.
    for sent in hostile_bytes(rpc):
        future: Any = call.future(sent, timeout=60)
        assert future.code() in CLEAN, (future.code(), future.details(), sent[:200])
    assert stub.call("Lookup", LOOKUP, timeout_seconds=20)
    assert not [record for record in caplog.records if record.exc_info]


def test_health_survives_malformed_messages(stub: Stub) -> None:
    check = stub.channel.unary_unary("/grpc.health.v1.Health/Check")
    for _ in range(300):
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\xff", timeout=20)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert check(b"", timeout=20)


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
