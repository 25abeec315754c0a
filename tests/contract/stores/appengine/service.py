"""App Engine's memcache as the SDK's own stub plays it, with places to step in.

The stub stands in the SDK's call machinery (threads, hooks, errors) where the
service stands in production. Its clock is the tests': what a time to live
does is tried without waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.appengine.api.memcache import memcache_stub

from userlock.clock import SYSTEM_CLOCK
from userlock.testing import ManualClock

#: Where the lock "ann" is stored, without a prefix of its own.
KEY = b"userlock:lock=ann"


class WallClock:
    """The wall clock of one machine, some seconds off a clock driven by hand.

    Waiting is real: a thread that waits must not move the time of the others.
    """

    def __init__(self, clock: ManualClock, off_by: float = 0.0) -> None:
        self._clock = clock
        self._off_by = off_by

    def wall(self) -> float:
        return self._clock.wall() + self._off_by

    def now(self) -> float:
        return SYSTEM_CLOCK.now()

    def sleep(self, seconds: float) -> None:
        SYSTEM_CLOCK.sleep(seconds)


class Service(memcache_stub.MemcacheServiceStub):
    def __init__(self, gettime: Callable[[], float]) -> None:
        super().__init__(gettime=gettime)
        #: Called with the method and its request before they are carried out.
        self.before: Callable[[str, Any], None] = lambda method, request: None
        #: Called after they were carried out, with the response as well.
        self.after: Callable[[str, Any, Any], None] = lambda method, request, response: None
        self.requests: list[tuple[str, Any]] = []

    def MakeSyncCall(  # noqa: N802
        self, service: str, call: str, request: Any, response: Any, request_id: Any = None
    ) -> None:
        self.requests.append((call, request))
        self.before(call, request)
        super().MakeSyncCall(service, call, request, response, request_id)
        self.after(call, request, response)

    def restart(self) -> None:
        """Lose everything, and count from 1 again, as memcached does."""
        self._the_cache.clear()
        self._lru.Clear()
        self._next_cas_id = 1

    def number_of(self, key: bytes) -> int:
        return int(self._the_cache[""][key].cas_id)
