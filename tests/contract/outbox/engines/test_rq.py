"""RQ on a real Redis: the contract of engines, kinds of workers, and what is stored."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
import redis

from tests.contract.outbox.engines.workers import Workers
from userlock.outbox.engines import Engine, Wake
from userlock.outbox.engines.registry import open_engine
from userlock.outbox.engines.rq import RUN_JOB, RQEngine
from userlock.testing import EngineContract, EngineForkContract


def worker(kind: str) -> list[str]:
    return [
        *(sys.executable, "-m", "rq.cli", "worker", "--with-scheduler", "--serializer"),
        *("rq.serializers.JSONSerializer", "--worker-class", f"rq.worker.{kind}"),
    ]


def workers(folder_of: pytest.TempPathFactory, kind: str) -> Workers:
    return Workers(
        folder_of.mktemp("rq"),
        lambda address: [*worker(kind), "--url", f"redis://{address}/0", "userlock"],
        ready="Listening on userlock",
    )


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    found = workers(tmp_path_factory, "SimpleWorker")
    yield found
    found.stop()


class TestRQ(EngineContract, EngineForkContract):
    early_seconds = 0.05

    @pytest.fixture
    def engine(self, backend: Workers) -> Iterator[Engine]:
        self.backend = backend
        engine = open_engine(f"rq://{backend.redis.address}/0")
        yield engine
        engine.close()

    def delivered(self, engine: Engine) -> Sequence[str]:
        return self.backend.delivered()

    def stopped(self, engine: Engine) -> AbstractContextManager[object]:
        return self.backend.redis.paused()


@pytest.mark.parametrize("kind", ["Worker", "SpawnWorker"])
def test_other_kinds_of_workers(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    """RQ's own worker forks for each job, and imports the app in the child."""
    backend = workers(tmp_path_factory, kind)
    try:
        contract = TestRQ()
        contract.backend = backend
        engine = open_engine(f"rq://{backend.redis.address}/0")
        assert engine.wake([Wake("first", "n-1"), Wake("second", "n-2")], 5) == [None, None]
        contract.eventually(engine, "first", "second")
        engine.close()
    finally:
        backend.stop()


@pytest.fixture
def client(redis_server: object) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(redis_server.url)  # type: ignore[attr-defined]
    client.flushdb()
    yield client
    client.close()


def test_redis_has_the_key_and_the_name_alone(redis_server: object, client: redis.Redis) -> None:
    engine = open_engine(f"rq://{redis_server.address}/0?queue=slow")  # type: ignore[attr-defined]
    assert isinstance(engine, RQEngine)
    assert engine.wake([Wake("the-key", "the-name")], 5) == [None]
    stored = client.hgetall("rq:job:the-name")
    assert isinstance(stored, dict)
    data: Any = stored[b"data"]
    call = json.loads(zlib.decompress(data))  # not a pickle
    assert call == [RUN_JOB, None, ["the-key"], {}]
    assert not any(b"the-key" in each for each in stored.values())
    assert client.lrange("rq:queue:slow", 0, -1) == [b"the-name"]
    engine.close()


def test_a_known_name_is_queued_once(redis_server: object, client: redis.Redis) -> None:
    engine = open_engine(f"rq://{redis_server.address}/0")  # type: ignore[attr-defined]
    for delay in (0, 0, 60):
        assert engine.wake([Wake("a", "n", delay)], 5) == [None]
    assert client.lrange("rq:queue:userlock", 0, -1) == [b"n"]
    assert client.zcard("rq:scheduled:userlock") == 0
    engine.close()


def test_one_that_redis_refuses_leaves_the_others(
    redis_server: object, client: redis.Redis
) -> None:
    """A script that Redis does not carry out: the key is of another type."""
    client.set("rq:queue:userlock", "a string")
    engine = open_engine(f"rq://{redis_server.address}/0")  # type: ignore[attr-defined]
    errors = engine.wake([Wake("a", "n-1"), Wake("b", "n-2", 60), Wake("c", "n-3")], 5)
    assert [each is None for each in errors] == [False, True, False]
    assert "WRONGTYPE" in str(errors[0])
    engine.close()


def test_a_wrong_password_is_an_error_without_it(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from tests.servers import RedisServer

    server = RedisServer(tmp_path_factory.mktemp("redis"))
    with redis.Redis.from_url(server.url) as client:
        client.config_set("requirepass", "open-sesame")
    try:
        for user in ("", "ann"):
            engine = open_engine(f"rq://{user}:wrong-sesame@{server.address}/0")
            (error,) = engine.wake([Wake("a", "n")], 5)
            assert error is not None
            assert "sesame" not in f"{error!r} {error.__cause__!r} {error.__context__!r}"
            engine.close()
        engine = open_engine(f"rq://:open-sesame@{server.address}/0")
        assert engine.wake([Wake("a", "n")], 5) == [None]
        assert "sesame" not in f"{engine!r} {engine.__dict__['name']}"
        engine.close()
    finally:
        server.stop()
