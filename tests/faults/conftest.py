"""A memcached behind a proxy with faults on demand."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.faults.proxy import FaultProxy
from tests.servers import Memcached
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.protocol import LeaseProtocol
from userlock.stores import MemcacheStore


class Commands(NamedTuple):
    """The beginning of the packet that each verb sends."""

    protocol: str
    create: bytes
    read: bytes
    swap: bytes
    remove: bytes
    append: bytes


META = Commands("meta", b"ms ", b"mg ", b"ms ", b"md ", b"ms ")
TEXT = Commands("text", b"add ", b"gets ", b"cas ", b"cas ", b"append ")


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def proxy(memcached: Memcached) -> Iterator[FaultProxy]:
    with FaultProxy(memcached.port) as proxy:
        yield proxy


@pytest.fixture(params=[META, TEXT], ids=lambda commands: commands.protocol)
def commands(request: pytest.FixtureRequest) -> Commands:
    """Provide the packets of the protocol under test."""
    commands: Commands = request.param
    return commands


@pytest.fixture
def store(
    proxy: FaultProxy, prefix: str, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MemcacheStore]:
    """Through the proxy, with a connection that stands already."""
    # What follows a fault is to be answered, however busy the machine is.
    monkeypatch.setattr("userlock.stores.pool.HURRY_TIMEOUT", 2.0)
    store = MemcacheStore(proxy.address, prefix=prefix, protocol=commands.protocol)
    store.read("warm-up")
    yield store
    store.close()


@pytest.fixture
def leases(store: MemcacheStore) -> LeaseProtocol:
    """Provide leases behind the proxy."""
    return LeaseProtocol(store, SYSTEM_CLOCK)


@pytest.fixture
def direct(memcached: Memcached, prefix: str) -> Iterator[MemcacheStore]:
    """Provide a store for the same keys, without the proxy."""
    store = MemcacheStore(memcached.address, prefix=prefix)
    yield store
    store.close()


@pytest.fixture
def theirs(direct: MemcacheStore) -> LeaseProtocol:
    """Provide the leases of other clients, without the proxy."""
    return LeaseProtocol(direct, SYSTEM_CLOCK)
