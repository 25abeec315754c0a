"""The two servers under comparison."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emulator import memcache
from tests.contract.memcache import real_memcached


@pytest.fixture(scope="session")
def real_port() -> Iterator[int]:
    """A real memcached, shared by the tests of this folder."""
    with real_memcached.running() as port:
        yield port


@pytest.fixture
def embedded() -> Iterator[memcache.Server]:
    """A fresh embedded server."""
    with memcache.start() as server:
        yield server


@pytest.fixture(params=["embedded", "real"])
def address(request: pytest.FixtureRequest) -> str:
    """Each server in turn, `host:port`: what holds for one must hold for the other."""
    if request.param == "real":
        port: int = request.getfixturevalue("real_port")
        return f"{real_memcached.HOST}:{port}"
    server: memcache.Server = request.getfixturevalue("embedded")
    return server.address
