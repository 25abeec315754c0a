"""Access to the emulators: for programs on this machine, but for no page in its browser."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub, ask
from tests.unit.emulator.builders import PROJECT, entity, key
from userlock_emulator import memcache

KEY = key("K", 1)
QUERY = f"/v1/projects/{PROJECT}:runQuery"
COMMIT = f"/v1/projects/{PROJECT}:commit"
DELETION = json.dumps(
    {"mode": "NON_TRANSACTIONAL", "mutations": [{"delete": {"path": [{"kind": "K", "id": "1"}]}}]}
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
    {"Host": "evil.example:8081", "Origin": "http://evil.example:8081"},
    {"Origin": "http://evil.example"},
    {"Sec-Fetch-Site": "same-site"},
]


def listening() -> list[bool]:
    """Return of each TCP socket on which this process listens whether it is of loopback."""
    loopback = []
    inodes = {str(link.resolve()) for link in Path("/proc/self/fd").iterdir()}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and any(f"socket:[{words[9]}]" in each for each in inodes):
                # In the kernel's form 127.0.0.1 is 0100007F; IPv6 addresses end with it.
                loopback.append(words[1].split(":")[0].endswith(("0100007F", "00000001000000")))
    return loopback


def test_it_listens_on_loopback_unless_it_is_told_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = len(listening())
    with userlock_emulator.start(), memcache.start():
        # The clients' port, gRPC's own behind it, memcached's.
        assert len(listening()) == before + 3
        assert all(listening())
    assert caplog.text == ""
    with userlock_emulator.start(host="0.0.0.0"), memcache.start(host="0.0.0.0"):
        assert listening().count(False) == 2
    assert caplog.text.count("0.0.0.0: any client that reaches it can read and change") == 2


@pytest.mark.parametrize("headers", SENT_BY_PAGES, ids=str)
def test_a_page_neither_reads_nor_changes_anything(
    server: userlock_emulator.Emulator,
    stub: Stub,
    headers: dict[str, str],
) -> None:
    stub.put(entity(KEY, n=1))
    server.faults.delay(0.0, kind="Other")
    planted = server.faults.planted
    for method, path, body in REQUESTS:
        refusal = ask(server.host, method, path, body, headers)
        assert (refusal.status, list(refusal.document)) == (403, ["error"])
    assert stub.get(KEY) is not None
    assert server.faults.planted == planted
    # The control: the same requests of a program.
    for method, path, body in REQUESTS:
        kind = {"Content-Type": "application/json"}
        assert ask(server.host, method, path, body, kind).status in (200, 201)
    # Browsers ask before they send what no form can send; that is refused.
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "DELETE"}
    answer = ask(server.host, "OPTIONS", "/faults", headers=preflight)
    assert answer.status == 501
    assert not [name for name in answer.headers if name.lower().startswith("access-control")]


def test_the_port_of_grpc_behind_it_knows_no_http() -> None:
    """Not even a method that looks like the beginning of HTTP/2 passes."""
    no_answer = (http.client.HTTPException, ConnectionError)
    with userlock_emulator.start() as running, pytest.raises(no_answer):
        ask(running.host, "PRI", "/reset", "", {"Host": "evil.example"})
