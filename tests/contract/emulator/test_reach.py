"""Access to the emulators: for programs on this machine, but for no page in its browser."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator

import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import EmulatorProcess
from tests.contract.emulator.sockets import beyond_loopback, listening
from tests.contract.emulator.test_operation import get, put
from tests.unit.emulator.builders import PROJECT, key
from userlock_emulator import memcache

KEY = key("K", 1)
QUERY = f"/v1/projects/{PROJECT}:runQuery"
COMMIT = f"/v1/projects/{PROJECT}:commit"
DELETION = json.dumps(
    {
        "mode": "NON_TRANSACTIONAL",
        "mutations": [{"delete": {"path": [{"kind": "K", "id": "1"}]}}],
    }
)
#: Requests that read or change data, or reveal that an emulator is running.
REQUESTS = [
    ("GET", "/", ""),
    ("GET", "/export", ""),
    ("GET", "/faults", ""),
    ("POST", "/reset", ""),
    ("POST", "/import", ""),
    ("POST", "/faults", '{"fault": "abort"}'),
    ("DELETE", "/faults", ""),
    ("POST", QUERY, '{"query": {"kind": [{"name": "K"}]}}'),
    ("POST", COMMIT, DELETION),
]
SENT_BY_PAGES = [
    {"Host": "evil.example:8081"},
    {"Host": "evil.example:8081", "Origin": "http://evil.example:8081"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


# --- listening sockets ---------------------------------------------------------------------------


def warnings(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines on standard error, without the one that says that it runs."""
    return [line for line in capfd.readouterr().err.splitlines() if "is now running" not in line]


def test_all_of_it_listens_on_loopback_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with EmulatorProcess("--memcached", "0") as process:
        # The clients' port, gRPC's own behind it, memcached's.
        assert len(listening(process.process.pid)) == 3
        assert beyond_loopback(process.process.pid) == set()
    assert warnings(capfd) == []


def test_on_other_addresses_it_warns_and_exposes_no_more_than_necessary(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with EmulatorProcess("--memcached", "0", "--host", "0.0.0.0") as process:
        assert len(listening(process.process.pid)) == 3
        assert len(beyond_loopback(process.process.pid)) == 2
    warned = warnings(capfd)
    assert len(warned) == 2
    assert all("0.0.0.0: any client that reaches it can read and change" in line for line in warned)


def test_the_same_inside_a_process(caplog: pytest.LogCaptureFixture) -> None:
    with userlock_emulator.start(), memcache.start():
        assert beyond_loopback(os.getpid()) == set()
    assert caplog.text == ""
    with memcache.start(host="0.0.0.0"):
        assert len(beyond_loopback(os.getpid())) == 1
    assert "0.0.0.0: any client that reaches it can read and change" in caplog.text


# --- pages in a browser -------------------------------------------------------------------------


@pytest.fixture
def connection(server: userlock_emulator.Emulator) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(server.host, timeout=20)
    yield connection
    connection.close()


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: str,
    headers: dict[str, str],
) -> tuple[int, str]:
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.parametrize("headers", SENT_BY_PAGES, ids=str)
@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_a_page_neither_reads_nor_changes_anything(
    connection: http.client.HTTPConnection,
    server: userlock_emulator.Emulator,
    stub: Stub,
    method: str,
    path: str,
    body: str,
    headers: dict[str, str],
) -> None:
    put(stub, KEY, n=1)
    server.faults.delay(0.0, kind="Other")
    planted = server.faults.planted
    status, said = ask(connection, method, path, body, headers)
    assert status == 403
    assert list(json.loads(said)) == ["error"]
    assert get(stub, KEY) is not None
    assert server.faults.planted == planted


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_a_program_does(
    connection: http.client.HTTPConnection, stub: Stub, method: str, path: str, body: str
) -> None:
    """The control: the same requests without the headers of a page."""
    status, _ = ask(connection, method, path, body, {"Content-Type": "application/json"})
    assert status in (200, 201)


def test_a_page_may_not_ask_whether_it_may(connection: http.client.HTTPConnection) -> None:
    """Browsers send a preflight request for anything that no form can send; it is refused."""
    headers = {"Origin": "http://evil.example", "StoreClient-Control-Request-Method": "DELETE"}
    connection.request("OPTIONS", "/faults", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 501
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_the_port_of_grpc_behind_it_knows_no_http() -> None:
    """Not even a method that looks like the beginning of HTTP/2 passes."""
    with userlock_emulator.start() as running:
        connection = http.client.HTTPConnection(running.host, timeout=20)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(connection, "PRI", "/reset", "", {"Host": "evil.example"})
        connection.close()
