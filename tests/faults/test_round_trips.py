"""The number of packets that each verb sends over a connection that stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis

from tests.faults.kinds import KINDS, PATIENT, kind_of
from tests.servers import RedisServer
from userlock.lock.store import LeaseStore
from userlock.stores.redis.store import Script
from userlock.waits import run

VERBS: dict[str, Callable[[LeaseStore, object], object]] = {
    "create": lambda store, _: store.create("bob", b"created", 60),
    "read": lambda store, _: store.read("ann"),
    "append": lambda store, _: store.append("ann", b"\nline"),
    "swap": lambda store, version: store.swap("ann", version, b"swapped", 60),
    "remove": lambda store, version: store.remove("ann", version),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_verb_takes_one(request: pytest.FixtureRequest, kind: str) -> None:
    with kind_of(request, kind).proxied(PATIENT) as (proxy, store, _):
        for name, verb in VERBS.items():
            verb(store, _as_before(store))  # loads the script of Redis
            version = _as_before(store)
            proxy.arm({})
            assert verb(store, version)
            assert proxy.passed == 1, name


def test_two_when_redis_has_forgotten_the_script(
    request: pytest.FixtureRequest, redis_server: RedisServer
) -> None:
    with kind_of(request, "redis").proxied(PATIENT) as (proxy, store, _):
        for name in VERBS.keys() - {"create"}:
            version = _as_before(store)
            with redis.Redis(port=redis_server.port) as client:
                client.script_flush()
            proxy.arm({})
            assert VERBS[name](store, version)
            assert proxy.passed == 2, name


def test_each_of_the_two_has_the_time_for_a_reply() -> None:
    class Forgetful:
        calls: ClassVar[list[bytes]] = []

        async def call(self, *command: bytes, replicas: int) -> None:
            self.calls.append(command[0])
            if command[0] == b"EVALSHA":
                raise redis.exceptions.NoScriptError

        def begin(self) -> None:
            self.calls.append(b"begin")

    connection: Any = Forgetful()
    run(Script("return 1").run, connection, b"key")
    assert connection.calls == [b"EVALSHA", b"begin", b"EVAL"]


def _as_before(store: LeaseStore) -> object:
    """Remove what the first call has left; return the version of a new record."""
    for lock_id in ("ann", "bob"):
        stored = store.read(lock_id)
        if stored is not None:
            store.remove(lock_id, stored.version)
    return store.create("ann", b"first", 60)
