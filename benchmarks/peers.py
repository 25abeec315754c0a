"""Every lock behind the same two verbs. `locks.py` says which there are.

The others' packages are not needed to import this module, and are looked up by
name: they are of the extra `bench`, which neither the library nor its tests ask for.
"""

from __future__ import annotations

import contextlib
import importlib
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import userlock
from benchmarks import scheme2016


class GaveUp(Exception):
    """A lock's own limit for a wait was reached."""


class Lock(Protocol):
    """What the benchmarks need of a lock, whoever made it."""

    def acquire(self) -> bool:
        """Wait for it; False when it goes on without its server's word.

        Raises:
            GaveUp: it has waited for as long as it does.
        """

    def release(self) -> None: ...


class Client(Protocol):
    """A process's connection to the server, shared by its threads."""

    def lock(self, lock_id: str) -> Lock:
        """A lock object for one thread."""

    def close(self) -> None: ...


class UserLock:
    """userlock at its defaults, as a client.

    Args:
        url: the store.
        outage: `fail` unless an outage is what is looked at: it would look like a fast lock.
        priority: `interactive` or `batch`.
    """

    def __init__(self, url: str, *, outage: str = "fail", priority: str = "interactive") -> None:
        self._service = userlock.LockService.from_url(url, outage=outage)
        self._priority = priority

    def lock(self, lock_id: str) -> Lock:
        return _Lease(self._service, lock_id, self._priority)

    def close(self) -> None:
        self._service.close()


class _Lease:
    def __init__(self, service: userlock.LockService, lock_id: str, priority: str) -> None:
        self._service = service
        self._lock_id = lock_id
        self._priority = priority
        self._lease: userlock.Lease | None = None

    def acquire(self) -> bool:
        try:
            self._lease = self._service.acquire(self._lock_id, priority=self._priority)
        except userlock.LockTimeout as error:
            raise GaveUp from error
        return not self._lease.degraded

    def release(self) -> None:
        assert self._lease is not None
        self._service.release(self._lease)


def userlock_on(scheme: str, **options: str) -> Callable[[str], Client]:
    """What connects userlock to a server: `scheme` is `memcache` or `redis`."""
    return lambda address: UserLock(f"{scheme}://{address}?prefix=bench", **options)


class Adapted:
    """A lock of somebody else.

    Args:
        acquire, release: its verbs; one that returns False has failed.
        gives_up: what its acquire raises at the end of its patience.
    """

    def __init__(
        self,
        acquire: Callable[[], object],
        release: Callable[[], object],
        *,
        gives_up: tuple[type[Exception], ...] = (),
    ) -> None:
        self._acquire = acquire
        self._release = release
        self._gives_up = gives_up

    def acquire(self) -> bool:
        try:
            taken = self._acquire()
        except self._gives_up as error:
            raise GaveUp from error
        if taken is False:
            raise GaveUp
        return True

    def release(self) -> None:
        if self._release() is False:
            raise RuntimeError("release: the lock was not ours any more")


class Scheme2016:
    """The scheme of 2016."""

    def __init__(self, address: str, *, batch: bool = False) -> None:
        self._client = scheme2016.client(_pair(address))
        self._batch = batch

    def lock(self, lock_id: str) -> Lock:
        return _Of2016(scheme2016.Lock(self._client, lock_id, batch=self._batch))

    def close(self) -> None:
        self._client.close()


class _Of2016:
    def __init__(self, lock: scheme2016.Lock) -> None:
        self._lock = lock

    def acquire(self) -> bool:
        try:
            return self._lock.acquire()
        except scheme2016.LockTimeout as error:
            raise GaveUp from error

    def release(self) -> None:
        self._lock.release()


class Sherlock:
    """sherlock's memcached lock; pylibmc's client is not thread-safe, so each lock has its own."""

    def __init__(self, address: str) -> None:
        self._pylibmc: Any = importlib.import_module("pylibmc")
        self._sherlock: Any = importlib.import_module("sherlock")
        self._address = address

    def lock(self, lock_id: str) -> Lock:
        # As sherlock's default client, but for the address.
        client = self._pylibmc.Client([self._address], binary=True)
        lock = self._sherlock.MCLock(lock_id, client=client)
        gives_up = self._sherlock.lock.LockTimeoutException
        return Adapted(lock.acquire, lock.release, gives_up=(gives_up,))

    def close(self) -> None:
        pass


class Tooz:
    """tooz with its memcached driver: one coordinator per process."""

    def __init__(self, address: str) -> None:
        coordination: Any = importlib.import_module("tooz.coordination")
        member = uuid.uuid4().hex.encode()
        self._coordinator = coordination.get_coordinator(f"memcached://{address}", member)
        self._coordinator.start()

    def lock(self, lock_id: str) -> Lock:
        lock = self._coordinator.get_lock(lock_id.encode())
        return Adapted(lock.acquire, lock.release)

    def close(self) -> None:
        self._coordinator.stop()


class _OnRedis:
    """One redis-py client per process, at its defaults."""

    def __init__(self, address: str) -> None:
        redis: Any = importlib.import_module("redis")
        host, port = _pair(address)
        self._client = redis.Redis(host=host, port=port)

    def close(self) -> None:
        self._client.close()


class RedisPy(_OnRedis):
    """The Lock that comes with redis-py."""

    def lock(self, lock_id: str) -> Lock:
        lock = self._client.lock(lock_id)
        return Adapted(lock.acquire, lock.release)


class PythonRedisLock(_OnRedis):
    """python-redis-lock: waits in BLPOP for the releaser's word."""

    def lock(self, lock_id: str) -> Lock:
        redis_lock: Any = importlib.import_module("redis_lock")
        lock = redis_lock.Lock(self._client, lock_id)
        return Adapted(lock.acquire, lock.release)


class Pottery(_OnRedis):
    """pottery's Redlock, on the one server that there is."""

    def lock(self, lock_id: str) -> Lock:
        pottery: Any = importlib.import_module("pottery")
        lock = pottery.Redlock(key=lock_id, masters={self._client})
        return Adapted(lock.acquire, lock.release)


def close_quietly(client: Client) -> None:
    """Close a client whose server may be gone."""
    with contextlib.suppress(Exception):
        client.close()


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
