"""Fixtures for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
from google.cloud import ndb

# The same examples in every run, so that a failure is due to a change, not to a busy machine. To
# search for others: HYPOTHESIS_PROFILE=default make test
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

from tests.kinds import kinds_for  # noqa: E402
from tests.servers import Memcached, RedisServer  # noqa: E402
from userlock import ids  # noqa: E402
from userlock.lock.configuration import defaults  # noqa: E402
from userlock.lock.scope import current_scope  # noqa: E402
from userlock.reports import REPORTS  # noqa: E402
from userlock.settings import Settings  # noqa: E402
from userlock.testing import ManualClock  # noqa: E402


def pytest_configure() -> None:
    """Let child processes be interrupted, also if a script has started the tests with `&`.

    The shell then makes them ignore SIGINT, and child processes inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time than the others have."""
    for item in items:
        slow = item.get_closest_marker("slow") or item.get_closest_marker("long")
        if slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def memcached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memcached]:
    """Provide a real memcached for tests that do it no harm; each uses a prefix of its own."""
    server = Memcached(tmp_path_factory.mktemp("memcached"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Provide a real Redis."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Provide a real Redis for a test that kills or stops it."""
    server = RedisServer(tmp_path_factory.mktemp("own-redis"))
    yield server
    server.stop()


@pytest.fixture
def own_memcached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memcached]:
    """Provide a real memcached for a test that kills it."""
    server = Memcached(tmp_path_factory.mktemp("own-memcached"))
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _fresh_defaults() -> Iterator[None]:
    """Reset the configuration and the scope after each test."""
    yield
    assert current_scope() is None, "the test left a scope open"
    defaults.service = None
    defaults.settings = Settings()
    ids.use(ids.form_of("plain"))
    REPORTS.reset()


@pytest.fixture(scope="module")
def module_kinds(request: pytest.FixtureRequest) -> dict[str, type[ndb.Model]]:
    """Provide the kinds that the tests of a module use: its own, and those of its helpers."""
    return kinds_for(request.module)


@pytest.fixture(autouse=True)
def _kinds(module_kinds: dict[str, type[ndb.Model]]) -> Iterator[None]:
    """Give each kind its class, whatever this and other tests define."""
    before = ndb.Model._kind_map
    ndb.Model._kind_map = {**before, **module_kinds}
    yield
    ndb.Model._kind_map = before
