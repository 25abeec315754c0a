"""Faults that are added over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

import userlock_emulator


def ask(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    """Send one HTTP request; return status and document."""
    request = urllib.request.Request(url, body, method=method)  # noqa: S310 - our own server
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


class TestHttp:
    @pytest.fixture
    def faults(self, server: userlock_emulator.Emulator) -> str:
        return f"http://{server.host}/faults"

    def plant(self, faults: str, **arguments: object) -> tuple[int, Any]:
        return ask(faults, "POST", json.dumps(arguments).encode())

    def test_plant_list_and_remove(self, server: userlock_emulator.Emulator, faults: str) -> None:
        status, first = self.plant(faults, fault="abort", count=2, kind="Learner")
        assert status == 201
        assert (first["rpc"], first["kind"], first["count"]) == ("Commit", "Learner", 2)
        _, second = self.plant(faults, fault="delay", seconds=0.5, rpc="Lookup", count=None)
        names = ["unavailable", "deadline_exceeded", "drop_reply", "hold"]
        others = [self.plant(faults, fault=name)[1] for name in names]
        assert ask(faults) == (200, {"faults": [first, second, *others]})
        planted = [fault.rule.name for fault in server.faults.planted]
        assert planted == ["abort", "delay", *names]
        assert ask(f"{faults}/{first['id']}", "POST", b"{}")[0] == 405
        assert ask(f"{faults}/{first['id']}", "DELETE") == (200, first)
        assert ask(f"{faults}/{first['id']}")[0] == 404
        assert ask(f"{faults}/{second['id']}") == (200, second)
        assert ask(faults, "DELETE") == (200, {"faults": []})
        assert not server.faults.planted
        server.faults.abort(None)
        server.reset()
        assert not server.faults.planted
        assert ask(faults, "PUT", b"{}")[0] == 405
        assert ask(f"http://{server.host}/nothing")[0] == 404

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
        self, server: userlock_emulator.Emulator, faults: str, body: bytes, says: str
    ) -> None:
        status, document = ask(faults, "POST", body)
        assert status == 400
        assert says in document["error"]
        assert not server.faults.planted
