"""The store contract on a real Redis, and what is particular to it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.servers import RedisServer
from userlock.stores.redis import RedisStore
from userlock.testing import RaceContract, TimeContract, VerbContract


class _OnRedis:
    @pytest.fixture
    def store(self, redis_server: RedisServer) -> Iterator[RedisStore]:
        store = RedisStore.from_url(f"{redis_server.url}?prefix={uuid.uuid4().hex}")
        yield store
        store.close()


class TestRedis(_OnRedis, VerbContract, RaceContract):
    pass


@pytest.mark.slow
class TestRedisInTime(_OnRedis, TimeContract):
    pass
