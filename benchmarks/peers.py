"""A common interface of all locks: acquire and release. `locks.py` lists them.

The other packages are imported by name when needed. They belong to the extra `bench`, which neither
the library nor its tests require.
"""

from __future__ import annotations

import contextlib
import importlib
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import userlock
from benchmarks import scheme2016
from userlock.lock.lease import PriorityName


class TimedOut(Exception):
    """A lock's own timeout was reached."""


class Lock(Protocol):
    """The interface that the benchmarks need of any lock."""

    def acquire(self) -> bool:
        """Wait for the lock; return False if it is degraded.

        Raises:
            TimedOut: its wait timed out.
        """

    def release(self) -> None: ...


class Client(Protocol):
    """A process's connection to the server, shared by its threads."""

    def lock(self, lock_id: str) -> Lock:
        """Return a lock object for one thread."""

    def close(self) -> None: ...


class UserLock:
    """userlock at its defaults, as a client.

    Args:
        url: the store.
        outage: `fail`, except to measure outages. With another policy an outage would look
            like a fast lock.
        priority: `interactive` or `batch`.
    """

    def __init__(
        self, url: str, *, outage: str = "fail", priority: PriorityName = "interactive"
    ) -> None:
        self._service = userlock.LockService.from_url(url, outage=outage)
        self._priority = priority

    def lock(self, lock_id: str) -> Lock:
        return _Lease(self._service, lock_id, self._priority)

    def close(self) -> None:
        self._service.close()


class _Lease:
    def __init__(self, service: userlock.LockService, lock_id: str, priority: PriorityName) -> None:
        self._service = service
        self._lock_id = lock_id
        self._priority = priority
        self._lease: userlock.Lease | None = None

    def acquire(self) -> bool:
        try:
            self._lease = self._service.acquire(self._lock_id, priority=self._priority)
        except userlock.LockTimeout as error:
            raise TimedOut from error
        return not self._lease.degraded

    def release(self) -> None:
        assert self._lease is not None
        self._service.release(self._lease)


def userlock_on(scheme: str, **options: Any) -> Callable[[str], Client]:
    """Return a function that connects userlock to a server. `scheme` is `memcache` or `redis`."""
    return lambda address: UserLock(f"{scheme}://{address}?prefix=bench", **options)


class Adapted:
    """A lock of another package.

    Args:
        acquire, release: its methods; a result of False is a failure.
        timeout_errors: the exceptions of its acquire after a timeout.
    """

    def __init__(
        self,
        acquire: Callable[[], object],
        release: Callable[[], object],
        *,
        timeout_errors: tuple[type[Exception], ...] = (),
    ) -> None:
        self._acquire = acquire
        self._release = release
        self._timeout_errors = timeout_errors

    def acquire(self) -> bool:
        try:
            taken = self._acquire()
        except self._timeout_errors as error:
            raise TimedOut from error
        if taken is False:
            raise TimedOut
        return True

    def release(self) -> None:
        if self._release() is False:
            raise RuntimeError("release: the lock was no longer ours")


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
            raise TimedOut from error

    def release(self) -> None:
        self._lock.release()


class Sherlock:
    """sherlock's memcached lock. pylibmc's client is not thread-safe, so each lock has its own."""

    def __init__(self, address: str) -> None:
        self._pylibmc: Any = importlib.import_module("pylibmc")
        self._sherlock: Any = importlib.import_module("sherlock")
        self._address = address

    def lock(self, lock_id: str) -> Lock:
        # As sherlock's default client, except for the address.
        client = self._pylibmc.Client([self._address], binary=True)
        lock = self._sherlock.MCLock(lock_id, client=client)
        timeout_errors = self._sherlock.lock.LockTimeoutException
        return Adapted(lock.acquire, lock.release, timeout_errors=(timeout_errors,))

    def close(self) -> None:
        pass


class Tooz:
    """The package tooz with its memcached driver: one coordinator per process."""

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
    """The Lock of redis-py."""

    def lock(self, lock_id: str) -> Lock:
        lock = self._client.lock(lock_id)
        return Adapted(lock.acquire, lock.release)


class PythonRedisLock(_OnRedis):
    """The package python-redis-lock, which waits in BLPOP for the releaser's message."""

    def lock(self, lock_id: str) -> Lock:
        redis_lock: Any = importlib.import_module("redis_lock")
        lock = redis_lock.Lock(self._client, lock_id)
        return Adapted(lock.acquire, lock.release)


class Pottery(_OnRedis):
    """The Redlock of pottery, on the one server."""

    def lock(self, lock_id: str) -> Lock:
        pottery: Any = importlib.import_module("pottery")
        lock = pottery.Redlock(key=lock_id, masters={self._client})
        return Adapted(lock.acquire, lock.release)


def close_quietly(client: Client) -> None:
    """Close a client whose server may have died."""
    with contextlib.suppress(Exception):
        client.close()


def _pair(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
