"""The two servers under comparison."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import Memcached
from userlock_emulator import memcache


@pytest.fixture(scope="session")
def real_memcached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memcached]:
    """Provide a real memcached; without background threads its answers are deterministic."""
    folder = tmp_path_factory.mktemp("memcached")
    server = Memcached(folder, "-U", "0", "-o", "no_lru_maintainer,no_lru_crawler")
    yield server
    server.stop()


@pytest.fixture
def embedded() -> Iterator[memcache.Server]:
    with memcache.start() as server:
        yield server


@pytest.fixture(params=["embedded", "real_memcached"])
def address(request: pytest.FixtureRequest) -> str:
    """Provide each server in turn, as `host:port`: the same must hold for both."""
    server: memcache.Server | Memcached = request.getfixturevalue(request.param)
    return server.address
