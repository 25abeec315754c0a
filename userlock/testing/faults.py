"""Accidents for tests of applications: what befalls locks, at the moment a test chooses.

Each is a call, so that a mock can make it happen in the middle of a request:

    mocker.patch("app.mail.send", side_effect=lambda *_: userlock_faults.lose_lease())
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from userlock.errors import LockNotHeld, LockServiceUnavailable
from userlock.lock.lease import check_lock_id
from userlock.lock.scope import current_scope
from userlock.lock.service import LockService
from userlock.stores.memory import MemoryStore, Verb

#: What a lock service does, and what it asks of its store for it when nobody else is there.
_VERBS: dict[str, Verb] = {"acquire": "create", "extend": "swap", "release": "remove"}


class LockFaults:
    """Accidents of one lock service over a store in memory.

    One that does not happen would leave a test that shows nothing. So what has
    nothing to befall is an error; and at the end of a test the fixture
    `userlock_faults` fails if a reply that was to be dropped was never asked for.
    `store_down` alone may go unnoticed: that code does without locks can be the
    very thing to show.

    Args:
        service: as the fixture `userlock_service` gives it.
    """

    def __init__(self, service: LockService) -> None:
        if not isinstance(service.store, MemoryStore):
            raise TypeError(
                f"faults need a lock service over a MemoryStore, not {type(service.store).__name__}"
            )
        self._service = service
        self._store = service.store

    def lose_lease(self, lock_id: str | int | None = None) -> None:
        """Let the code that is running lose a lock, and know it, as by a heartbeat.

        The lock is free for anybody. The next put under it raises
        `LeaseWasLost`, `lease.lost` says so, and `on_lost` is called.

        Args:
            lock_id: which lock; by default each one that is held here.

        Raises:
            LockNotHeld: it is not held here: in this thread, and in the innermost scope.
        """
        scope = current_scope()
        held = {} if scope is None else dict(scope.held)
        wanted = list(held) if lock_id is None else [check_lock_id(lock_id)]
        if not wanted:
            raise LockNotHeld("no lock is held here, to be lost", lock_id="")
        for each in wanted:
            if each not in held:
                raise LockNotHeld(f"lock {each!r} is not held here, to be lost", lock_id=each)
            self._store.evict(each)
            held[each].lose("a test has taken it away")

    def evict(self, lock_id: str | int) -> None:
        """Let the store forget a lock, as a memcached short of memory does.

        Its holder does not know, and others get it. Two that then write the
        same entity: one gets `StaleWriteError`.

        Raises:
            LockNotHeld: the store knows nothing of it: nobody holds it, or waits for it.
        """
        lock_id = check_lock_id(lock_id)
        if not self._store.evict(lock_id):
            raise LockNotHeld(f"nobody holds lock {lock_id!r}, to be forgotten", lock_id=lock_id)

    @contextlib.contextmanager
    def store_down(self) -> Iterator[None]:
        """Let the store answer nothing for a block, as a memcached that is not there.

        By default locks are granted without it (`lease.degraded`) then; with
        `outage="fail"` it is `LockServiceUnavailable`. Nothing is waited for.
        """
        self._store.go_down("a test has taken the store down", sent=False)
        try:
            yield
        finally:
            self._store.come_back()
            self._wait_for_the_breaker()

    def _wait_for_the_breaker(self) -> None:
        """A service asks a store that did not answer again after ten times what that has cost."""
        while True:
            try:
                self._service.look("userlock-faults")
            except LockServiceUnavailable:
                self._service.clock.sleep(0.0005)
            else:
                return

    def drop_reply(self, to: Literal["acquire", "extend", "release"] = "acquire") -> None:
        """Let the store's next answer be lost: it does what it is asked to, and nobody knows.

        After `acquire` and `release` the library looks what has become of it, and the
        application notices nothing; `lock.extend` raises `LockServiceUnavailable`.

        Args:
            to: what is asked for: a lock that is free, more time, the end of a lock that
                nobody waits for.
        """
        if to not in _VERBS:
            raise ValueError(f"a reply to what? {to!r} is none of {', '.join(_VERBS)}")
        self._store.lose_reply(_VERBS[to])

    def to_come(self) -> list[str]:
        """Return the replies that `drop_reply` is still to drop."""
        verbs = self._store.to_come()
        return [to for to, verb in _VERBS.items() if verb in verbs]
