"""Redis under the engine for RQ: contents and refusals. The contract: `test_workers`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from tests.servers import RedisServer
from userlock.outbox.engines import Wake
from userlock.outbox.engines.registry import open_engine
from userlock.outbox.engines.rq import RUN_JOB


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
