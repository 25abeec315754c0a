"""Inject faults into locks in tests of applications, at a moment of the test's choice.

Each fault is a call, so a mock can cause it in the middle of a request:

    mocker.patch("app.mail.send", side_effect=lambda *_: userlock_faults.lose_lease())
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from userlock.errors import LockNotHeld, LockServiceUnavailable
from userlock.ids import quoted
from userlock.lock.held_lock import lose
from userlock.lock.lease import check_lock_id
from userlock.lock.scope import current_scope
from userlock.lock.service import LockService
from userlock.stores.memory import MemoryStore, Verb

#: The store's verb for each operation of a lock service, if there are no waiters.
_VERBS: dict[str, Verb] = {"acquire": "create", "extend": "swap", "release": "remove"}


class LockFaults:
    """Faults of one lock service over a store in memory.

    A test with a fault without effect proves nothing. So a fault that hits no lock is an error, and
    the fixture `userlock_faults` fails a test if a reply to be dropped was never asked for. Only
    `store_down` may go unnoticed: the test may show that code works without locks.

    Args:
        service: the lock service, as the fixture `userlock_service` gives it.
    """

    def __init__(self, service: LockService) -> None:
        if not isinstance(service.store, MemoryStore):
            raise TypeError(
                f"faults need a lock service over a MemoryStore, not {type(service.store).__name__}"
            )
        self._service = service
        self._store = service.store

    def lose_lease(self, lock_id: str | int | None = None) -> None:
        """Take a lock from the running code, and let it know, as a heartbeat would.

        The lock is free for others. The next put under it raises `LeaseWasLost`, and `lock.lost`
        says so.

        Args:
            lock_id: the lock; by default every lock that is held here.

        Raises:
            LockNotHeld: this thread does not hold the lock in its innermost scope.
        """
        scope = current_scope()
        held = {} if scope is None else dict(scope.held)
        wanted = list(held) if lock_id is None else [check_lock_id(lock_id)]
        if not wanted:
            raise LockNotHeld("no lock is held here, to be lost", lock_id="")
        for each in wanted:
            if each not in held:
                raise LockNotHeld(f"lock {quoted(each)} is not held here, to be lost", lock_id=each)
            self._store.evict(each)
            lose(held[each], "a test has taken it away")

    def evict(self, lock_id: str | int) -> None:
        """Let the store forget a lock, as a memcached short of memory does.

        The holder does not know, and others get the lock. If two holders then write one entity, one
        of them gets `StaleWriteError`.

        Raises:
            LockNotHeld: the lock has neither holder nor waiters.
        """
        lock_id = check_lock_id(lock_id)
        if not self._store.evict(lock_id):
            name = quoted(lock_id)
            raise LockNotHeld(f"nobody holds lock {name}, to be forgotten", lock_id=lock_id)

    @contextlib.contextmanager
    def store_down(self) -> Iterator[None]:
        """Let the store not answer for a block, like a memcached that is not there.

        By default locks are granted without the store then (`lease.degraded`); with `outage="fail"`
        they raise `LockServiceUnavailable`. Nothing waits.
        """
        self._store.go_down("a test has taken the store down", sent=False)
        try:
            yield
        finally:
            self._store.come_back()
            # The service asks its store again after ten times the failure's time.
            while True:
                try:
                    self._service.look("userlock-faults")
                    break
                except LockServiceUnavailable:
                    self._service.clock.sleep(0.0005)

    def drop_reply(self, to: Literal["acquire", "extend", "release"] = "acquire") -> None:
        """Lose the store's next reply: the store does its work, but the caller is not told.

        After `acquire` and `release` the library reads the record, and the application notices
        nothing; `lock.extend` raises `LockServiceUnavailable`.

        Args:
            to: the operation whose reply is lost: taking a free lock, extending a lease,
                releasing a lock without waiters.
        """
        if to not in _VERBS:
            raise ValueError(f"drop_reply takes one of {', '.join(_VERBS)}, not {to!r}")
        self._store.lose_reply(_VERBS[to])

    def to_come(self) -> list[str]:
        """Return the replies that `drop_reply` is still to drop."""
        verbs = self._store.to_come()
        return [to for to, verb in _VERBS.items() if verb in verbs]
