"""Callers that wait for one lock, all in one thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from userlock import LockService, LockTimeout
from userlock.errors import LockError
from userlock.events import Listeners
from userlock.lock.lease import Lease
from userlock.testing import ManualClock

Then = Callable[[], object]


class Waiters:
    """Callers that wait for the lock of ann, each begun while those before it wait.

    They are in one thread, one inside the other. So locks are released by another service, which
    hands none over: the outermost cannot go on before those inside.
    """

    def __init__(self, service: LockService, clock: ManualClock) -> None:
        self._service = service
        self._elsewhere = LockService(service.store, clock=clock, listeners=Listeners())
        self._clock = clock
        self.errors: list[LockError] = []
        self.served = 0

    def begin(self, number: int, then: Then, **options: Any) -> None:
        """Let callers wait; call `then` while all of them do, and return when none does."""
        if number == 0:
            then()
            return
        self._clock.after(0.001, lambda: self.begin(number - 1, then, **options))
        try:
            lease = self._service.acquire("ann", **{"wait_timeout": 10, **options})
        except LockTimeout as error:
            self.errors.append(error)
        else:
            self.served += 1
            self.release(lease)

    def release(self, lease: Lease) -> None:
        """Release a lock."""
        self._elsewhere.release(lease)
