"""The RPCs over HTTP/JSON, and the requests beside them, without sockets."""

from __future__ import annotations

import base64
import json
from http import HTTPStatus
from typing import Any

import pytest

from tests.unit.emulator.tasks.subject import LOCATION, QUEUE, Subject
from userlock_emulator.port.status import RpcError
from userlock_emulator.tasks import protos
from userlock_emulator.tasks.control import Control
from userlock_emulator.tasks.rest import Rest
from userlock_emulator.tasks.tokens import GOOGLE, Signer


class Bench:
    def __init__(self) -> None:
        self.subject = Subject()
        self.rest = Rest(self.subject.services)
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


def test_queues(bench: Bench) -> None:
    assert bench.ask("GET", f"/v2/{QUEUE}")[1]["retryConfig"]["minBackoff"] == "0.100s"
    assert [each["name"] for each in bench.ask("GET", f"/v2/{LOCATION}/queues")[1]["queues"]] == [
        QUEUE
    ]
    change = {"rateLimits": {"maxDispatchesPerSecond": 3, "maxConcurrentDispatches": 4}}
    for mask in ("rateLimits.maxDispatchesPerSecond", "rate_limits.max_dispatches_per_second"):
        limits = bench.ask("PATCH", f"/v2/{QUEUE}?updateMask={mask}", change)[1]["rateLimits"]
        assert (limits["maxDispatchesPerSecond"], limits["maxConcurrentDispatches"]) == (3, 1000)
    assert bench.ask("POST", f"/v2/{QUEUE}:pause", {})[1]["state"] == "PAUSED"
    assert bench.ask("POST", f"/v2/{QUEUE}:resume")[1]["state"] == "RUNNING"
    assert "purgeTime" in bench.ask("POST", f"/v2/{QUEUE}:purge", {})[1]
    assert bench.ask("DELETE", f"/v2/{QUEUE}") == (200, {})
    assert bench.ask("GET", f"/v2/{QUEUE}")[0] == 404


def test_tasks(bench: Bench) -> None:
    body = base64.b64encode(b"hello").decode()
    asked = {
        "task": {"httpRequest": {"url": "http://h/", "body": body, "httpMethod": "PUT"}},
        "responseView": "FULL",
    }
    status, task = bench.ask("POST", f"/v2/{QUEUE}/tasks", asked)
    assert (status, task["httpRequest"]["body"], task["view"]) == (200, body, "FULL")
    assert "body" not in bench.ask("GET", f"/v2/{task['name']}")[1]["httpRequest"]
    full = bench.ask("GET", f"/v2/{task['name']}?responseView=FULL")[1]
    assert full["httpRequest"]["body"] == body
    as_number = bench.ask("GET", f"/v2/{task['name']}?responseView=2&$alt=json;enum-encoding=int")[
        1
    ]
    assert (as_number["view"], as_number["httpRequest"]["httpMethod"]) == (2, 4)
    assert bench.ask("POST", f"/v2/{task['name']}:run", {})[1]["dispatchCount"] == 1
    assert bench.ask("DELETE", f"/v2/{task['name']}") == (200, {})


def test_pages_and_batches(bench: Bench) -> None:
    for name in "abc":
        bench.create(name)
    page = bench.ask("GET", f"/v2/{QUEUE}/tasks?pageSize=2")[1]
    assert len(page["tasks"]) == 2
    rest = bench.ask("GET", f"/v2/{QUEUE}/tasks?page_size=2&pageToken={page['nextPageToken']}")[1]
    assert [each["name"][-1] for each in rest["tasks"]] == ["c"]
    assert "nextPageToken" not in rest
    requests = [{"task": {"httpRequest": {"url": url}}} for url in ("http://h/", "x")]
    status, operation = bench.ask("POST", f"/v2/{QUEUE}/tasks:batchCreate", {"requests": requests})
    assert (status, operation["done"]) == (200, True)
    assert list(operation["metadata"]["failedRequests"]) == ["1"]
    assert bench.ask("GET", f"/v2/{operation['name']}") == (200, operation)
    names = [each["name"] for each in (*page["tasks"], *operation["response"]["tasks"])]
    assert bench.ask("POST", f"/v2/{QUEUE}/tasks:batchDelete", {"names": names})[0] == 200
    assert bench.subject.tasks.count(QUEUE) == 1


@pytest.mark.parametrize(
    ("method", "path", "document", "status"),
    [
        ("GET", f"/v2/{QUEUE}x", None, "NOT_FOUND"),
        ("GET", "/v2/x", None, "NOT_FOUND"),
        ("PUT", f"/v2/{QUEUE}", None, "NOT_FOUND"),
        ("POST", f"/v2/{QUEUE}:unknown", None, "NOT_FOUND"),
        ("POST", f"/v2/{LOCATION}/queues", {"name": QUEUE}, "ALREADY_EXISTS"),
        ("POST", f"/v2/{QUEUE}/tasks", [], "INVALID_ARGUMENT"),
        ("POST", f"/v2/{QUEUE}/tasks", {"task": 7}, "INVALID_ARGUMENT"),
        ("POST", f"/v2/{QUEUE}/tasks", {"unknown": 7}, "INVALID_ARGUMENT"),
        ("POST", f"/v2/{QUEUE}/tasks", {"task": {"scheduleTime": "soon"}}, "INVALID_ARGUMENT"),
        ("GET", f"/v2/{QUEUE}/tasks?pageSize=x", None, "INVALID_ARGUMENT"),
        ("GET", f"/v2/{QUEUE}/tasks?unknown=x", None, "INVALID_ARGUMENT"),
        ("GET", f"/v2/{QUEUE}/tasks?pageSize.x=1", None, "INVALID_ARGUMENT"),
        ("GET", f"/v2/{QUEUE}/tasks?pageSize=1e999", None, "INVALID_ARGUMENT"),
        ("GET", f"/v2/{QUEUE}/tasks?{'pageSize=1&' * 101}", None, "INVALID_ARGUMENT"),
        ("POST", f"/v2/{QUEUE}/tasks", {"task": {"name": "\ud800"}}, "INVALID_ARGUMENT"),
        ("PATCH", f"/v2/{QUEUE}?updateMask=x", {}, "INVALID_ARGUMENT"),
        ("PATCH", f"/v2/{QUEUE}?updateMask=%00", {}, "INVALID_ARGUMENT"),
        ("PATCH", f"/v2/{QUEUE}", [], "INVALID_ARGUMENT"),
        ("GET", "/v2/projects/p/locations/l/queues/a%2Fb", None, "NOT_FOUND"),
        ("GET", "/v2/projects/p/locations/l/queues/a_b", None, "INVALID_ARGUMENT"),
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
    bench.subject.queues.update(
        protos.UpdateQueueRequest(queue={"name": QUEUE, "retry_config": longest})
    )
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
            {}, {"fault": "clear"}, {"fault": "late"}, {"fault": "late", "seconds": "x"},
            {"fault": "late", "seconds": -1}, {"fault": "late", "seconds": 1e999},
            {"fault": "duplicate", "count": 0}, {"fault": "duplicate", "count": True},
            {"fault": "duplicate", "rpc": "CreateTask"}, {"fault": "never", "queue": 7},
            {"fault": "unavailable", "rpc": "Commit"}, {"fault": "outage", "seconds": -1},
            {"fault": "outage"},
            {"fault": "drop_reply", "skip": -1}, {"fault": "plant", "rule": {}},
        ],
    )  # fmt: skip
    def test_wrong_faults(self, bench: Bench, asked: dict[str, Any]) -> None:
        status, answer = bench.ask("POST", "/faults", asked)
        assert status == 400
        assert answer["error"]
        assert not bench.subject.faults.planted
