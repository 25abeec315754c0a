"""Servers by their names, and keys of their own, for the tests of broken servers."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from tests.clusters import RedisCluster
from tests.servers import Memcached, RedisServer

#: Returns the URL of a server's store with keys of the test's own; `options` follow.
UrlOf = Callable[..., str]


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def url_of(request: pytest.FixtureRequest, prefix: str) -> UrlOf:
    """Start a memcached, a Redis or a cluster when its URL is asked for."""

    def url(kind: str, options: str = "") -> str:
        if kind == "cluster":
            cluster: RedisCluster = request.getfixturevalue("redis_cluster")
            return cluster.url(prefix, options)
        if kind == "redis":
            redis: RedisServer = request.getfixturevalue("redis_server")
            return f"{redis.url}?prefix={prefix}{options}"
        memcached: Memcached = request.getfixturevalue("memcached")
        return memcached.url(prefix) + options

    return url
