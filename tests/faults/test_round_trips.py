"""The number of packets that each verb sends over a connection that stands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from tests.faults.kinds import KINDS, PATIENT, kind_of
from tests.servers import RedisServer
from userlock.lock.store import LeaseStore

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


def _as_before(store: LeaseStore) -> object:
    """Remove what the first call has left; return the version of a new record."""
    for lock_id in ("ann", "bob"):
        stored = store.read(lock_id)
        if stored is not None:
            store.remove(lock_id, stored.version)
    return store.create("ann", b"first", 60)
