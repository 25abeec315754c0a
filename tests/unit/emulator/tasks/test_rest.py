"""The RPCs over HTTP/JSON, and the requests beside them, without sockets."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import pytest

from tests.unit.emulator.tasks.subject import LOCATION, QUEUE, Subject
from userlock_emulator.port.status import RpcError
from userlock_emulator.tasks.control import Control
from userlock_emulator.tasks.rest import Rest
from userlock_emulator.tasks.tokens import GOOGLE, Signer


class Bench:
    def __init__(self) -> None:
        self.subject = Subject()
        self.rest = Rest("v2", self.subject.rpcs)
        self.resets: list[None] = []
        self.control = Control(
            self.subject.faults,
            Signer(self.subject.storage, GOOGLE),
            "127.0.0.1:9",
            lambda: self.resets.append(None),
        )

    def ask(self, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        body = b"" if document is None else json.dumps(document).encode()
        handler = self.rest if path.startswith("/v2/") else self.control
        reply = handler.answer(method, path, body)
        assert isinstance(reply.body, bytes)
        return int(reply.status), json.loads(reply.body)

    def create(self, task_id: str) -> None:
        task = {"name": f"{QUEUE}/tasks/{task_id}", "httpRequest": {"url": "http://h/"}}
        assert self.ask("POST", f"/v2/{QUEUE}/tasks", {"task": task})[0] == 200


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    status, queue = bench.ask("POST", f"/v2/{LOCATION}/queues", {"name": QUEUE})
    assert (status, queue["name"], queue["state"]) == (200, QUEUE, "RUNNING")
    return bench


@pytest.mark.parametrize(
    ("method", "path", "document", "status"),
    [
        ("GET", f"/v2/{QUEUE}x", None, "NOT_FOUND"),
        ("PUT", f"/v2/{QUEUE}", None, "NOT_FOUND"),
        ("POST", f"/v2/{QUEUE}:unknown", None, "NOT_FOUND"),
        ("POST", f"/v2/{LOCATION}/queues", {"name": QUEUE}, "ALREADY_EXISTS"),
        ("POST", f"/v2/{QUEUE}/tasks", [], "INVALID_ARGUMENT"),
        ("POST", f"/v2/{QUEUE}/tasks", {"task": 7}, "INVALID_ARGUMENT"),
        ("GET", f"/v2/{QUEUE}/tasks?pageSize=x", None, "INVALID_ARGUMENT"),
        ("GET", f"/v2/{QUEUE}/tasks?pageSize=1e999", None, "INVALID_ARGUMENT"),
        ("GET", f"/v2/{QUEUE}/tasks?{'pageSize=1&' * 101}", None, "INVALID_ARGUMENT"),
        ("POST", f"/v2/{QUEUE}/tasks", {"task": {"name": "\ud800"}}, "INVALID_ARGUMENT"),
        ("PATCH", f"/v2/{QUEUE}?updateMask=%00", {}, "INVALID_ARGUMENT"),
        ("GET", "/v2/projects/p/locations/l/queues/a%2Fb", None, "NOT_FOUND"),
    ],
)
def test_errors(bench: Bench, method: str, path: str, document: Any, status: str) -> None:
    code, answer = bench.ask(method, path, document)
    assert answer["error"]["status"] == status
    assert answer["error"]["code"] == code
    assert answer["error"]["message"]


def test_times_of_other_clients_can_always_be_shown(bench: Bench) -> None:
    """A message over gRPC can hold times that JSON has no form for."""
    odd = {"seconds": 1, "nanos": 2_000_000_000}
    for seconds in (2**62, 315_576_000_001):
        settings = {"max_backoff": {"seconds": seconds}}
        with pytest.raises(RpcError, match="longer than a Duration"):
            bench.subject.create_queue(f"{QUEUE}2", retry_config=settings)
    longest = {"max_backoff": {"seconds": 315_576_000_000}, "min_backoff": odd, "max_doublings": 99}
    bench.subject.call("UpdateQueue", queue={"name": QUEUE, "retry_config": longest})
    assert bench.ask("GET", f"/v2/{QUEUE}")[1]["retryConfig"]["minBackoff"] == "3s"
    bench.create("a")
    for _ in range(70):
        bench.subject.fail("a")
    status, task = bench.ask("GET", f"/v2/{QUEUE}/tasks/a")
    assert (status, task["dispatchCount"]) == (200, 70)


class TestControl:
    def test_reset(self, bench: Bench) -> None:
        for path in ("/reset", "/oauth2/v3/certs"):
            wrong = "GET" if path == "/reset" else "POST"
            assert bench.ask(wrong, path)[0] == 405
        assert not bench.resets
        assert bench.ask("POST", "/reset") == (200, {})
        assert len(bench.resets) == 1
        for body in (b"{", b"\xff", b"[" * 100_000, b"null", b"7"):
            reply = bench.rest.answer("POST", f"/v2/{QUEUE}/tasks", body)
            assert reply.status == HTTPStatus.BAD_REQUEST

    def test_faults(self, bench: Bench) -> None:
        asked = {"fault": "late", "seconds": 5, "count": 2, "queue": "q"}
        status, planted = bench.ask("POST", "/faults", asked)
        assert status == 201
        assert planted == {
            "id": 1,
            "fault": "late",
            "rpc": None,
            "queue": "q",
            "seconds": 5,
            "count": 2,
            "skip": 0,
            "hits": 0,
        }
        assert bench.ask("GET", "/faults")[1] == {"faults": [planted]}
        assert bench.ask("DELETE", "/faults/1") == (200, planted)
        assert bench.ask("DELETE", "/faults/1")[0] == 404
        bench.ask("POST", "/faults", {"fault": "drop_reply"})
        assert bench.ask("DELETE", "/faults") == (200, {"faults": []})

    @pytest.mark.parametrize(
        "asked",
        [
            {}, {"fault": "clear"}, {"fault": "late"}, {"fault": "late", "seconds": 1e999},
            {"fault": "duplicate", "count": True}, {"fault": "duplicate", "rpc": "CreateTask"},
            {"fault": "never", "queue": 7}, {"fault": "unavailable", "rpc": "Commit"},
            {"fault": "outage", "seconds": -1}, {"fault": "drop_reply", "skip": -1},
        ],
    )  # fmt: skip
    def test_wrong_faults(self, bench: Bench, asked: dict[str, Any]) -> None:
        status, answer = bench.ask("POST", "/faults", asked)
        assert status == 400
        assert answer["error"]
        assert not bench.subject.faults.planted
