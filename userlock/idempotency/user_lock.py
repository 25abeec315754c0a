"""The user's lock during an attempt, which calls of other services do without.

    attempt A                       locks                         another request of the user
    phase                           the user's: A
    call: takes the call's lock     the user's: A; the call's: A
    leaves the user's               the call's: A
    waits for the provider          the user's ─────────────────▶ runs
    stores the reply
    takes the user's lock again     both: A                       waits
    gives the call's back           the user's: A

The call's lock tells another attempt of the same request that this one lives.

All waits of a user's requests count together, as waits for the user's lock do (`max_waiting`): for
an attempt that is in a call, and for the other service too. So they occupy no more threads of a
server than those of a locked view.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from userlock.errors import TooManyWaiting
from userlock.lock.api import global_lock
from userlock.lock.held_lock import HeldLock
from userlock.lock.scope import LockScope
from userlock.ndb.owners import joined


def call_lock_id(row_key: Any) -> str:
    return joined("userlock.call", row_key.namespace() or "", *row_key.flat())


class UserLock:
    """The lock of a request's user, for one attempt.

    Attributes:
        held: the lock, while it is held.
    """

    held: HeldLock

    def __init__(
        self, opened: LockScope, row_key: Any, user_id: str, wait_timeout: float | None
    ) -> None:
        self._opened, self._row_key = opened, row_key
        self._user_id, self._wait_timeout = user_id, wait_timeout
        #: The `__exit__` of the lock's block, while it is held.
        self._leave_held: Any = None
        #: Whether code around has the lock, which is not ours to leave.
        self._is_others = user_id in opened.held

    def __enter__(self) -> UserLock:
        self._take(self._wait_timeout)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _take(self, wait_timeout: float | None, *, max_waiting: int | None = None) -> None:
        lock = self._lock(self._user_id, wait_timeout, max_waiting)
        leave = lock.__exit__  # before `__enter__`, as a `with` statement does
        self.held = lock.__enter__()
        self._leave_held = leave

    def _end(self) -> None:
        leave, self._leave_held = self._leave_held, None
        if leave is not None:
            leave(None, None, None)

    def _lock(
        self, lock_id: str, wait_timeout: float | None, max_waiting: int | None = None
    ) -> global_lock:
        heartbeat = not self._opened.service.requests_only
        return global_lock(
            lock_id, wait_timeout=wait_timeout, heartbeat=heartbeat, max_waiting=max_waiting
        )

    @contextlib.contextmanager
    def _counted(self, *, more: int = 0) -> Iterator[None]:
        """Count a wait for something else among those for the user's lock: so many more may."""
        opened, place = self._opened, _Place()
        admission = opened.service.admission
        said = opened.defaults_of(opened.priority).max_waiting
        most = opened.max_waiting if said is None else said
        most = None if most is None else most + more
        try:
            try:
                rejection = admission.enter(self._user_id, place, most)
                if rejection is not None:
                    raise TooManyWaiting(
                        lock_id=self._user_id,
                        waiting=rejection.waiting,
                        waited_seconds=0.0,
                        holder=rejection.holder,
                        retry_after=1,
                    )
                yield
            finally:
                admission.leave(self._user_id, place)
        finally:
            # Once more: the thread may be stopped while it leaves.
            admission.leave(self._user_id, place)

    @contextlib.contextmanager
    def calling(self) -> Iterator[bool]:
        """Have the call's lock for a block, in which `leave()` leaves the user's.

        Gives whether the store has confirmed it. The end of the block takes the user's again, after
        an error not: the attempt ends. LockTimeout: it was not free in time. TooManyWaiting, before
        the call: enough requests of the user wait.
        """
        if self._is_others:
            yield not self.held.degraded
            return
        with self._lock(call_lock_id(self._row_key), 0) as own:
            with self._counted(more=1):  # this one: it had the lock, and no other one has it now
                yield not own.degraded
            # It had the lock, and must get it back.
            self._take(self._wait_timeout, max_waiting=sys.maxsize)

    def leave(self) -> None:
        if not self._is_others:
            self._end()

    def is_calling(self, wait_timeout: float | None) -> bool:
        """Wait until the attempt that is in a call ends it, without the user's lock.

        Returns False if no attempt is in a call for certain, with the user's lock taken again.
        LockTimeout: it was still in the call, or enough requests of the user wait.
        """
        self._end()
        waits = contextlib.nullcontext() if wait_timeout == 0 else self._counted()
        with waits, self._lock(call_lock_id(self._row_key), wait_timeout) as own:
            calling = own.degraded
        self._take(self._wait_timeout)
        return calling


class _Place:
    """A wait for something else than a lock: it has met no holder."""

    holder = None
