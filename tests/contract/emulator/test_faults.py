"""Faults that are added over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

import userlock_emulator
from tests.contract.emulator.conftest import ask


def request(
    server: userlock_emulator.Emulator, method: str = "GET", path: str = "", body: bytes = b""
) -> tuple[int, Any]:
    answer = ask(server.host, method, f"/faults{path}", body or None)
    return answer.status, answer.document


def plant(server: userlock_emulator.Emulator, **arguments: object) -> tuple[int, Any]:
    return request(server, "POST", body=json.dumps(arguments).encode())


def test_plant_list_and_remove(server: userlock_emulator.Emulator) -> None:
    status, first = plant(server, fault="abort", count=2, kind="Learner")
    assert status == 201
    assert (first["rpc"], first["kind"], first["count"]) == ("Commit", "Learner", 2)
    _, second = plant(server, fault="delay", seconds=0.5, rpc="Lookup", count=None)
    names = ["unavailable", "deadline_exceeded", "drop_reply", "hold"]
    others = [plant(server, fault=name)[1] for name in names]
    assert request(server) == (200, {"faults": [first, second, *others]})
    planted = [fault.rule.name for fault in server.faults.planted]
    assert planted == ["abort", "delay", *names]
    assert request(server, "POST", f"/{first['id']}", b"{}")[0] == 405
    assert request(server, "DELETE", f"/{first['id']}") == (200, first)
    assert request(server, "GET", f"/{first['id']}")[0] == 404
    assert request(server, "GET", f"/{second['id']}") == (200, second)
    assert request(server, "DELETE") == (200, {"faults": []})
    assert not server.faults.planted
    server.faults.abort(None)
    server.reset()
    assert not server.faults.planted
    assert request(server, "PUT", body=b"{}")[0] == 405
    assert ask(server.host, "GET", "/nothing").status == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'{"fault": "plant"}', "there is no fault 'plant'"),
        (b'{"fault": "abort", "count": 0}', "at least 1"),
        (b'{"fault": "abort", "kind": 7}', "kind cannot be 7"),
        (b'{"fault": "abort", "knid": "K"}', "unexpected keyword argument 'knid'"),
        (b'{"fault": "delay"}', "missing 1 required positional argument: 'seconds'"),
    ],
)
def test_what_cannot_be_is_refused(
    server: userlock_emulator.Emulator, body: bytes, says: str
) -> None:
    status, document = request(server, "POST", body=body)
    assert status == 400
    assert says in document["error"]
    assert not server.faults.planted
