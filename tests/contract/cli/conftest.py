"""Provide locks on each kind of store, and a command line."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest

import userlock
import userlock_emulator
from tests.clusters import RedisCluster
from tests.contract.cli.process import Cli
from tests.servers import Memcached, RedisServer
from userlock.lock.lease import Holder
from userlock.lock.record import joining


class Scene:
    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self.service = userlock.LockService.from_url(cli.url)

    def hold(self, lock_id: str, request: str = "POST /answers") -> userlock.Lease:
        return self.service.acquire(lock_id, wait_timeout=0, request=request)

    def wait(self, lock_id: str, request: str = "GET /badges") -> None:
        token = uuid.uuid4().hex
        holder = Holder(token, "interactive", time.time(), 60.0, "web-2/12", request)
        assert self.service.store.append(lock_id, joining(holder)) is not None


@pytest.fixture(scope="session")
def datastore() -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start() as server:
        yield server


@pytest.fixture(
    params=[
        "memcached",
        pytest.param("memcached-text", marks=pytest.mark.slow),
        "redis",
        "cluster",
        pytest.param("datastore", marks=pytest.mark.slow),
    ]
)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    prefix = f"cli{uuid.uuid4().hex[:8]}"
    kind: str = request.param
    env: dict[str, str] = {}
    if kind.startswith("memcached"):
        server: Memcached = request.getfixturevalue("memcached")
        url = server.url(prefix) + ("&protocol=text" if kind.endswith("text") else "")
    elif kind == "redis":
        redis_server: RedisServer = request.getfixturevalue("redis_server")
        url = f"{redis_server.url}?prefix={prefix}"
    elif kind == "cluster":
        cluster: RedisCluster = request.getfixturevalue("redis_cluster")
        url = cluster.url(prefix)
    else:
        running: userlock_emulator.Emulator = request.getfixturevalue("datastore")
        env = dict(running.env)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        url = f"datastore://?prefix={prefix}&timeout=10"
    scene = Scene(Cli(url, env))
    with contextlib.closing(scene.service):
        yield scene


@pytest.fixture
def on_memcached(memcached: Memcached) -> Iterator[Scene]:
    scene = Scene(Cli(memcached.url(f"cli{uuid.uuid4().hex[:8]}")))
    with contextlib.closing(scene.service):
        yield scene
