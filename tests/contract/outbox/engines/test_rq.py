"""Redis under the engine for RQ: contents and refusals, and records of others that may write there.

The contract: `test_workers`.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from rq.exceptions import NoSuchJobError

from tests.contract.outbox.engines import recording
from tests.servers import RedisServer
from userlock.outbox.engines import Wake, open_engine
from userlock.outbox.engines.rq import RUN_JOB, Job


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushdb()
        yield client


@pytest.fixture
def opened(redis_server: RedisServer) -> Iterator[Callable[..., Any]]:
    """Return a function that opens an engine: by the rest of its URL, and the user before it."""
    engines = []

    def opened(rest: str = "/0", user: str = "", server: RedisServer = redis_server) -> Any:
        engines.append(open_engine(f"rq://{user}{server.address}{rest}"))
        return engines[-1]

    yield opened
    for each in engines:
        each.close()


def test_redis_has_the_key_and_the_name_alone(opened: Any, client: redis.Redis) -> None:
    assert opened("/0?queue=slow").wake([Wake("the-key", "the-name")], 5) == [None]
    stored: Any = client.hgetall("rq:job:the-name")
    call = json.loads(zlib.decompress(stored[b"data"]))  # not a pickle
    assert call == [RUN_JOB, None, ["the-key"], {}]
    assert not any(b"the-key" in each for each in stored.values())
    assert client.lrange("rq:queue:slow", 0, -1) == [b"the-name"]


def test_a_known_name_is_queued_once(opened: Any, client: redis.Redis) -> None:
    engine = opened()
    for delay in (0, 0, 60):
        assert engine.wake([Wake("a", "n", delay)], 5) == [None]
    assert client.lrange("rq:queue:userlock", 0, -1) == [b"n"]
    assert client.zcard("rq:scheduled:userlock") == 0


def test_one_that_redis_refuses_leaves_the_others(opened: Any, client: redis.Redis) -> None:
    """A script that Redis does not carry out: the key is of another type."""
    client.set("rq:queue:userlock", "a string")
    errors = opened().wake([Wake("a", "n-1"), Wake("b", "n-2", 60), Wake("c", "n-3")], 5)
    assert [each is None for each in errors] == [False, True, False]
    assert "WRONGTYPE" in str(errors[0])


def test_a_wrong_password_is_an_error_without_it(opened: Any, own_redis: RedisServer) -> None:
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("requirepass", "open-sesame")
    for user in ("", "ann"):
        engine = opened("/0", f"{user}:wrong-sesame@", own_redis)
        (error,) = engine.wake([Wake("a", "n")], 5)
        assert error is not None
        assert "sesame" not in f"{error!r} {error.__cause__!r} {error.__context__!r}"
    engine = opened("/0", ":open-sesame@", own_redis)
    assert engine.wake([Wake("a", "n")], 5) == [None]
    assert "sesame" not in f"{engine!r} {engine.__dict__['name']}"


# --- records that somebody else has written -----------------------------------------------------

FOREIGN = f"{recording.__name__}.foreign"


class Pickled:
    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> Any:
        return recording.foreign, (self.name,)


def call(function: str, *arguments: str) -> bytes:
    return json.dumps([function, None, arguments, {}]).encode()


#: By what they would run: what a worker calls, what it gets besides. OURS stands for the function
#: of our messages; RQ's own workers get another one that they can run.
RECORDS: dict[str, dict[str, Any]] = {
    "function": {"data": call(FOREIGN, "function")},
    "success": {"data": call("OURS", "key-2"), "success_callback_name": FOREIGN},
    "failure": {"data": call("OURS"), "failure_callback_name": FOREIGN},
    "pickle": {"data": pickle.dumps(Pickled("pickle"))},
    "meta": {"data": call("OURS", "key-3"), "meta": pickle.dumps(Pickled("meta"))},
}
#: RQ's own workers end with one of these.
MALFORMED: dict[str, dict[str, Any]] = {
    "no-data": {},
    "no-date": {"data": call("OURS", "key-4"), "created_at": "yesterday"},
}
MESSAGE: dict[str, dict[str, Any]] = {"key-1": {"data": call("OURS", "key-1")}}


def work(
    client: redis.Redis,
    server: RedisServer,
    records: dict[str, dict[str, Any]],
    function: str,
    *options: str,
) -> set[str]:
    """Let a worker of RQ take all records; return which ones made it run something foreign."""
    client.flushdb()
    for name, record in records.items():
        fields: Any = {"status": "queued", "origin": "userlock", **record}
        if "data" in fields:
            fields["data"] = fields["data"].replace(b"OURS", function.encode())
        client.hset(f"rq:job:{name}", mapping=fields)
        client.rpush("rq:queue:userlock", name)
    root = Path(__file__).parents[4]
    subprocess.run(
        [
            *(sys.executable, "-m", "rq.cli", "worker", "--burst", "--url", server.url),
            *(*options, "userlock"),
        ],
        env={
            **os.environ,
            "USERLOCK_OUTBOX": f"{recording.__name__}:outbox",
            "PYTHONPATH": str(root),
            recording.REDIS: server.url,
        },
        cwd=root,
        capture_output=True,
        timeout=100,
        check=True,
    )
    assert client.llen("rq:queue:userlock") == 0
    found: Any = client.lrange(recording.FOREIGN, 0, -1)
    return {each.decode() for each in found}


OURS = ("--worker-class", "userlock.outbox.engines.rq.SimpleWorker")


@pytest.mark.parametrize("more", [(), ("--job-class", "rq.job.Job", "--serializer", "pickle")])
def test_our_workers_run_the_outbox_alone(
    client: redis.Redis, redis_server: RedisServer, more: tuple[str, ...]
) -> None:
    """Whatever their options say; and the others have their turn."""
    records = {**RECORDS, **MALFORMED, **MESSAGE}
    assert work(client, redis_server, records, RUN_JOB, *OURS, *more) == set()
    delivered: Any = client.lrange(recording.DELIVERED, 0, -1)
    assert sorted(delivered) == [b"key-1", b"key-2", b"key-3"]


def test_control_rq_s_own_worker_runs_them_all(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    own = ("--worker-class", "rq.worker.SimpleWorker", "--serializer")
    by_name = work(client, redis_server, RECORDS, "os.fspath", *own, "json")
    assert by_name == {"function", "success", "failure"}
    assert work(client, redis_server, RECORDS, "os.fspath", *own, "pickle") >= {"pickle", "meta"}


def test_control_rq_s_own_worker_fails_with_our_messages(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    options = ("--worker-class", "rq.worker.SimpleWorker", "--serializer", "json")
    work(client, redis_server, MESSAGE, RUN_JOB, *options)
    assert client.llen(recording.DELIVERED) == 0
    job: Any = client.xrange("rq:results:key-1")
    error = zlib.decompress(base64.b64decode(job[-1][1][b"exc_string"]))
    assert b"--worker-class userlock.outbox.engines.rq.Worker" in error


@pytest.mark.parametrize(
    "field",
    [
        *("success_callback_name", "webhooks", "timeout", "repeats_left", "retries_left", "meta"),
        *("group_id", "dependency_ids", "result", "description", "rate_limit_key"),
    ],
)
def test_other_fields_have_no_effect(client: redis.Redis, field: str) -> None:
    def restored(record: dict[bytes, bytes]) -> dict[str, Any]:
        job = Job("name", connection=client)
        job.restore(
            {b"data": call(RUN_JOB, "key"), b"created_at": b"2026-11-28T12:00:00Z", **record}
        )
        return vars(job)

    assert restored({field.encode(): b"1"}) == restored({})


def test_a_malformed_record_is_no_job(client: redis.Redis) -> None:
    with pytest.raises(NoSuchJobError):
        Job("name", connection=client).restore({b"data": b"x", b"created_at": b"yesterday"})
