"""The stores whose commands are driven through the proxy, each with its real server."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import pytest

from tests.faults.proxy import Fault, FaultProxy, ReplyFault
from tests.servers import Memcached, RedisServer, redis_store
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore
from userlock.stores.pool import REPLY_TIMEOUT

AnyFault = Fault | ReplyFault
ALL_FAULTS: list[AnyFault] = [*Fault, *ReplyFault]
#: The faults after which the caller waits for the whole reply timeout.
SLOW: list[AnyFault] = [Fault.DROP_REPLY, Fault.SWALLOW, Fault.DELAY, ReplyFault.LATE]
QUICK = [fault for fault in ALL_FAULTS if fault not in SLOW]
#: A timeout for replies that do come, on a busy machine too, in seconds.
PATIENT = 5.0


class Kind(NamedTuple):
    """A type of store, and the port of its server."""

    name: str
    port: int
    open: Callable[[str, str, float], LeaseStore]

    @contextlib.contextmanager
    def proxied(
        self, timeout: float = REPLY_TIMEOUT
    ) -> Iterator[tuple[FaultProxy, LeaseStore, LeaseStore]]:
        """Yield a proxy, a store behind it, and one without it, with keys of their own.

        Args:
            timeout: the reply timeout of the first store, in seconds.
        """
        prefix = uuid.uuid4().hex
        with FaultProxy(self.port) as proxy:
            store = self.open(proxy.address, prefix, timeout)
            direct = self.open(f"127.0.0.1:{self.port}", prefix, PATIENT)
            try:
                yield proxy, store, direct
            finally:
                store.close()
                direct.close()


def _meta(address: str, prefix: str, timeout: float) -> LeaseStore:
    return MemcacheStore(address, prefix=prefix, protocol="meta", timeout=timeout)


def _text(address: str, prefix: str, timeout: float) -> LeaseStore:
    return MemcacheStore(address, prefix=prefix, protocol="text", timeout=timeout)


def _redis(address: str, prefix: str, timeout: float) -> LeaseStore:
    return redis_store(f"redis://{address}/0?prefix={prefix}&socket_timeout={timeout}")


KINDS = ("memcached, meta", "memcached, text", "redis")


def kind_of(request: pytest.FixtureRequest, name: str) -> Kind:
    """Return the type of that name; start its server if necessary."""
    if name == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        return Kind(name, redis.port, _redis)
    memcached: Memcached = request.getfixturevalue("memcached")
    return Kind(name, memcached.port, _meta if name.endswith("meta") else _text)


def each_fault(few: Collection[AnyFault]) -> list[Any]:
    """Return each fault with each kind, as parameters. All but a few are slow.

    By memcached's text protocol only those few: its connections are those of the meta protocol.
    """
    return [
        pytest.param(
            kind, fault, id=f"{kind}, {fault.value}", marks=[pytest.mark.slow] * (fault not in few)
        )
        for kind in KINDS
        for fault in (few if kind.endswith("text") else ALL_FAULTS)
    ]
