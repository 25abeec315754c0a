"""Requests with any content: each gets an answer or a clean error, and leaves usable data."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from tests.unit.emulator.tasks.subject import LOCATION, QUEUE, Subject
from userlock_emulator.port.status import Code, RpcError
from userlock_emulator.tasks.attempts import Answer
from userlock_emulator.tasks.rest import Rest
from userlock_emulator.tasks.storage import Storage
from userlock_emulator.tasks.targets import TargetError, Targets
from userlock_emulator.tasks.tokens import GOOGLE, Signer

HTTP = {
    "url": "http://127.0.0.1:80/a?b#c",
    "http_method": "PUT",
    "headers": {"A": "b", "Content-Type": "x"},
    "body": b"hello",
    "oidc_token": {"service_account_email": "a@b", "audience": "c"},
}
APP_ENGINE = {"relative_uri": "/a", "app_engine_routing": {"service": "s"}, "headers": {"A": "b"}}
TIMES = {"schedule_time": {"seconds": 1_700_000_100}, "dispatch_deadline": {"seconds": 20}}
SETTINGS = {
    "name": QUEUE,
    "rate_limits": {"max_dispatches_per_second": 5, "max_concurrent_dispatches": 6},
    "retry_config": {
        "max_attempts": 5,
        "max_doublings": 3,
        "min_backoff": {"seconds": 1},
        "max_backoff": {"seconds": 9},
        "max_retry_duration": {"seconds": 99},
    },
    "app_engine_routing_override": {"service": "s"},
}


HTTP_TASK = {"parent": QUEUE, "task": {"name": f"{QUEUE}/tasks/a", "http_request": HTTP, **TIMES}}
TASK = {"name": f"{QUEUE}/tasks/a"}
#: Requests that are good, in an order in which each is carried out.
VALID: list[tuple[str, dict[str, Any]]] = [
    ("CreateQueue", {"parent": LOCATION, "queue": SETTINGS}),
    ("UpdateQueue", {"queue": SETTINGS, "update_mask": {"paths": ["retry_config"]}}),
    ("ListQueues", {"parent": LOCATION, "page_size": 2, "filter": "state:PAUSED"}),
    ("CreateTask", HTTP_TASK),
    (
        "CreateTask",
        {"parent": QUEUE, "task": {"app_engine_http_request": APP_ENGINE}, "response_view": 2},
    ),
    ("ListTasks", {"parent": QUEUE, "page_size": 1, "page_token": "YQ=="}),
    ("GetTask", {**TASK, "response_view": 2}),
    ("RunTask", TASK),
    ("PauseQueue", {"name": QUEUE}),
    ("ResumeQueue", {"name": QUEUE}),
    ("BatchCreateTasks", {"parent": QUEUE, "requests": [HTTP_TASK]}),
    ("BatchDeleteTasks", {"parent": QUEUE, "names": [f"{QUEUE}/tasks/b"]}),
    ("DeleteTask", TASK),
    ("PurgeQueue", {"name": QUEUE}),
    ("DeleteQueue", {"name": QUEUE}),
]


def run(subject: Subject, rpc: str, request: Any) -> None:
    code = None
    try:
        subject.rpcs[rpc][0](request)
    except RpcError as error:
        code = error.code
    assert code is not Code.INTERNAL, (rpc, request)


def spoiled(random: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 5))):
        place = random.randrange(len(changed))
        changed[place] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 10, 13, random.randrange(256)))
    return bytes(changed)


def look(subject: Subject, rest: Rest, targets: Targets) -> None:
    """Use all that is stored: over HTTP, and as a request to a target."""
    reply = rest.answer("GET", f"/v2/{LOCATION}/queues", b"")
    assert reply.status == 200, reply.body
    with subject.storage.look() as tables:
        queues = [name for _, name, _ in tables.queues()]
    for queue in queues:
        reply = rest.answer("GET", f"/v2/{queue}/tasks?responseView=FULL", b"")
        assert reply.status == 200, reply.body
    if QUEUE not in queues:
        return
    for task in subject.call("ListTasks", parent=QUEUE).tasks:
        attempt = subject.begin(task.name.rpartition("/")[2])
        try:
            head = targets.outgoing(attempt).head
            assert head.count(b"\r\n\r\n") == 1
            assert head.count(b"\n") == head.count(b"\r\n")
        except TargetError:
            pass
        subject.finish(attempt, Answer(status=500))


def test_all_are_good() -> None:
    """The negative control: unspoiled, each is carried out."""
    subject = Subject()
    for rpc, fields in VALID:
        subject.call(rpc, **fields)


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer(Storage(), GOOGLE)


def test_spoiled_requests(signer: Signer) -> None:
    chance = random.Random(0)
    tried = 0
    for _ in range(25):
        subject = Subject()
        rest = Rest("v2", subject.rpcs)
        targets = Targets(signer, {"": "127.0.0.1:1"})
        for rpc, fields in VALID:
            request = subject.rpcs[rpc][1](**fields)
            for _ in range(3):
                try:
                    wrong = type(request).FromString(spoiled(chance, request.SerializeToString()))
                except DecodeError:
                    continue
                tried += 1
                run(subject, rpc, wrong)
            run(subject, rpc, request)
            look(subject, rest, targets)
    assert tried > 100
