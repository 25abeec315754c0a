"""Real servers count the requests that they get, and nothing else."""

from __future__ import annotations

import pytest

from benchmarks import locks
from benchmarks.locks import Store
from benchmarks.peers import Client
from benchmarks.server import _is_whole
from tests.servers import real


@pytest.mark.parametrize(
    ("reply", "whole"),
    [
        (b"", False),
        (b"$5", False),
        (b"$5\r\n", False),
        (b"$5\r\nab:cd", False),
        (b"$5\r\nab:cd\r\n", True),
    ],
)
def test_a_reply_of_redis_is_read_to_its_end(reply: bytes, whole: bool) -> None:
    assert _is_whole(reply) is whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trips"), [(locks.SCHEME_2016, 2), ("redis-py", 2), (locks.USERLOCK, 2)]
)
def test_requests_are_counted(name: str, trips: int) -> None:
    kind = locks.KINDS[name]
    real("memcached", "memcached")
    if kind.store is Store.REDIS:
        real("redis-server", "redis-server")
    with locks.started(kind.store) as server:
        client: Client = kind.connect(server.address)
        lock = client.lock("learner-1")
        lock.acquire()
        lock.release()
        before = server.requests()
        assert server.requests() == before  # asking for the number is not counted
        for _ in range(10):
            lock.acquire()
            lock.release()
        assert server.requests() - before == 10 * trips
        client.close()


@pytest.mark.slow
def test_a_stopped_server_answers_again_after_it_continues() -> None:
    real("memcached", "memcached")
    with locks.started(Store.MEMCACHED) as server:
        with server.stopped(), pytest.raises(TimeoutError):
            server.requests()
        assert server.requests() == 0
