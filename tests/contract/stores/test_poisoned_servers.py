"""Garbage in a lock's record, on real servers too: it breaks nothing."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.leases import existing
from tests.poison import values
from tests.servers import Memcached, RedisServer
from userlock.errors import LockTimeout
from userlock.events import Listeners
from userlock.lock.lease import Granted
from userlock.lock.service import LockService
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore
from userlock.stores.urls import open_store
from userlock.waits import run

#: The server is the same for all examples; each has a lock of its own.
on_a_server = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def service_on(store: LeaseStore) -> LockService:
    return LockService(store, outage="fail", listeners=Listeners())


def is_free(service: LockService, lock_id: str) -> bool:
    record = service.look(lock_id)
    return record is None or record.free


def meet(store: LeaseStore, value: bytes) -> None:
    """Ask for a lock whose record is garbage; lose one to it; break it."""
    service, lock_id = service_on(store), uuid.uuid4().hex
    assert store.create(lock_id, value, 60.0) is not None
    _ask(service, lock_id)
    service.break_lock(lock_id)
    assert is_free(service, lock_id)

    lock_id = uuid.uuid4().hex
    ours = service.acquire(lock_id)
    assert store.swap(lock_id, existing(store.read(lock_id)).version, value, 60.0) is not None
    assert not isinstance(run(service.extend, ours, 30.0), Granted)
    service.release(ours)
    assert existing(store.read(lock_id)).record.startswith(value)


def _ask(service: LockService, lock_id: str) -> None:
    was_free = is_free(service, lock_id)
    holder = service.holder(lock_id)
    assert holder is None or holder.describe().isprintable()
    with contextlib.suppress(LockTimeout):
        lease = service.acquire(lock_id, wait_timeout=0)
        assert was_free
        assert not lease.degraded
        service.release(lease)


@pytest.fixture(params=["memory", "meta", "text", "redis"])
def store(
    memcached: Memcached, redis_server: RedisServer, request: pytest.FixtureRequest
) -> Iterator[LeaseStore]:
    prefix = uuid.uuid4().hex
    url = {"memory": "memory://", "redis": f"{redis_server.url}?prefix={prefix}"}.get(
        request.param, f"{memcached.url(prefix)}&protocol={request.param}"
    )
    with contextlib.closing(open_store(url)) as store:
        yield store


@on_a_server
@given(values)
@example(b"END\r\nVALUE x 0 1\r\n1\r\nEND\r\n")
@example(b"HD c1 t-1\r\nEN\r\nMN\r\n")
@example(b"$-1\r\n:1\r\n")
@example(b"#kZ0x3v9TqY1bW5uD\n")
@example(b"[" * 100_000)
def test_it_breaks_nothing(store: LeaseStore, value: bytes) -> None:
    meet(store, value)


def test_a_lock_granted_on_a_poisoned_record_is_noticed(
    memcached: Memcached, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with a rule that gives every waiter its turn."""
    value = b'["4f01","interactive",1,60,"web","GET /"]'
    store = MemcacheStore(memcached.address, prefix=uuid.uuid4().hex)
    meet(store, value)
    monkeypatch.setattr("userlock.lock.record.Record.is_turn_of", lambda *_: True)
    with pytest.raises(AssertionError):
        meet(store, value)
    store.close()
