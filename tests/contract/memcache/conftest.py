"""The two servers under comparison."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.memcache import real_memcached
from userlock_emulator import memcache


@pytest.fixture(scope="session")
def real_port() -> Iterator[int]:
    """Provide a real memcached, shared by the tests of this folder."""
    with real_memcached.running() as port:
        yield port


@pytest.fixture
def embedded() -> Iterator[memcache.Server]:
    """Provide a new embedded server."""
    with memcache.start() as server:
        yield server


@pytest.fixture(params=["embedded", "real"])
def address(request: pytest.FixtureRequest) -> str:
    """Provide each server in turn, as `host:port`: the same must hold for both."""
    if request.param == "real":
        port: int = request.getfixturevalue("real_port")
        return f"{real_memcached.HOST}:{port}"
    server: memcache.Server = request.getfixturevalue("embedded")
    return server.address
