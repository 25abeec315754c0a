"""A tenure: one uninterrupted holding of one lock by one scope.

Released and taken again is a new tenure: others may have written in between.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from userlock.lock.lease import Lease

if TYPE_CHECKING:
    from userlock.lock.scope import LockScope


def running_code() -> tuple[int, int]:
    """What is running now: the thread, and the asyncio task if there is one.

    A scope may be seen by several (`asyncio.to_thread` and new tasks copy
    context variables). Each enters a lock on its own account.
    """
    task = 0
    if asyncio._get_running_loop() is not None:
        task = id(asyncio.current_task())
    return threading.get_ident(), task


class Tenure:
    """One uninterrupted holding of one lock by one scope.

    What `with global_lock(…) as lock` gives.

    Attributes:
        lock_id: what is locked.
        scope: who holds it.
    """

    __slots__ = (
        "_depth",
        "_postponed",
        "_released",
        "_since",
        "lease",
        "lock_id",
        "notes",
        "owner",
        "scope",
    )

    def __init__(self, scope: LockScope, lease: Lease) -> None:
        self.lock_id = lease.lock_id
        self.scope = scope
        #: The lease that backs it now.
        self.lease = lease
        #: What participants want to remember about it; gone with the tenure.
        self.notes: dict[str, object] = {}
        self._since = scope.service.clock.now()
        #: Which thread and task entered it; only that one enters it again without waiting.
        self.owner = running_code()
        self._depth = 1
        self._postponed = False
        self._released = False

    @property
    def held(self) -> bool:
        """Whether the lock has not been released yet (its lease may have run out)."""
        return not self._released

    @property
    def degraded(self) -> bool:
        """Whether the lock was taken without the store's word, because it did not answer."""
        return self.lease.degraded

    @property
    def ran_out(self) -> bool:
        """Whether the lease is over by this process's own clock."""
        return self.scope.service.clock.now() >= self.lease.deadline

    @property
    def remaining_seconds(self) -> float:
        """How long the lease has to run; 0 when it is over."""
        return max(0.0, self.lease.deadline - self.scope.service.clock.now())

    @property
    def held_seconds(self) -> float:
        """How long ago the lock was taken."""
        return self.scope.service.clock.now() - self._since

    def __repr__(self) -> str:
        state = "released" if self._released else "ran out" if self.ran_out else "held"
        return f"<Tenure of {self.lock_id!r}: {state}>"


class Participant(Protocol):
    """Who has a say when locks are left. The model layer is one."""

    def leaving(self, tenure: Tenure) -> None:
        """The lock is about to be released: finish what was begun under it.

        What this raises reaches the code that leaves the lock, after the
        release.
        """
        ...

    def postpone(self, tenure: Tenure, release: Callable[[], None]) -> bool:
        """True to keep the lock for now and call `release` later.

        A lock that is entered again meanwhile is left again, and postponed again;
        `release` does nothing then until the last time.
        """
        ...


#: Everybody who has a say, in this process.
participants: list[Participant] = []


def register_participant(participant: Participant) -> None:
    """Give `participant` a say from now on, in this process."""
    participants.append(participant)
