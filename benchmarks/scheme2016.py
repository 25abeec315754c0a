"""The scheme of 2016, as its authors describe it, over pymemcache.

    acquire   add the key with the lease as its time to live; if the key exists,
              sleep for a second and retry; if memcached does not answer,
              go on as if the lock were ours
    release   delete the key
    batch     sleep for 1.1 seconds before the first attempt, so that any interactive
              waiter polls in between

Source: "The User Write Lock: an Alternative to Transactions for Google App Engine" (Khan Academy,
2016). The article leaves some values open, which are chosen here: a wait of 5 seconds is the one in
its example, a lease of 60 seconds the limit that it names for a request. The client is pymemcache's
pool at its defaults, which has no timeouts, while App Engine's calls end by themselves.

All limitations in the article are kept: the delete does not check the owner of the key, and there
is no queue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from pymemcache.client.base import PooledClient
from pymemcache.exceptions import MemcacheError

RETRY_SECONDS = 1.0
BATCH_HEAD_START_SECONDS = 1.1
WAIT_SECONDS = 5.0
LEASE_SECONDS = 60

log = logging.getLogger(__name__)


class LockTimeout(Exception):
    """The lock was not free at any attempt within the wait."""


class Lock:
    """A lock on `key`, without an owner token.

    Args:
        client: a pymemcache client.
        key: names the lock.
        batch: give way to interactive waiters.
        clock, sleep: the time, and waiting.
    """

    def __init__(
        self,
        client: Any,
        key: str,
        *,
        batch: bool = False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._key = f"lock.{key}"
        self._batch = batch
        self._clock = clock
        self._sleep = sleep

    def acquire(self, wait_timeout: float = WAIT_SECONDS) -> bool:
        """Wait for the lock; return whether memcached confirmed it.

        Raises:
            LockTimeout: it was held at every attempt.
        """
        if self._batch:
            self._sleep(BATCH_HEAD_START_SECONDS)
        began = self._clock()
        contended = False
        while True:
            try:
                added = self._client.add(self._key, b"1", expire=LEASE_SECONDS, noreply=False)
            except (OSError, MemcacheError):
                log.warning("memcached did not answer: going on without the lock %s", self._key)
                return False
            if added:
                log.info("acquired %s%s", self._key, " after contention" if contended else "")
                return True
            contended = True
            if self._clock() - began + RETRY_SECONDS > wait_timeout:
                raise LockTimeout(self._key)
            self._sleep(RETRY_SECONDS)

    def release(self) -> None:
        """Delete the key of any holder."""
        try:
            self._client.delete(self._key, noreply=False)
        except (OSError, MemcacheError):
            log.warning("memcached did not answer: %s stays until it runs out", self._key)
        else:
            log.info("released %s", self._key)


def client(server: tuple[str, int]) -> Any:
    """Return pymemcache's pool, at its defaults."""
    return PooledClient(server)
