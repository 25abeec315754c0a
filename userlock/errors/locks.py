"""Errors of locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from userlock.errors.base import UserLockError

if TYPE_CHECKING:
    from userlock.lock.lease import Holder


class LockError(UserLockError):
    """Something about one lock.

    Attributes:
        lock_id: the lock concerned.
    """

    def __init__(self, message: str, *, lock_id: str) -> None:
        super().__init__(message)
        self.lock_id = lock_id


class LockTimeout(LockError):
    """The lock was not free within the wait.

    Attributes:
        lock_id: the lock concerned.
        waited_seconds: how long this caller waited.
        holder: who held it at the last look, or None if that is not known.
    """

    def __init__(self, *, lock_id: str, waited_seconds: float, holder: Holder | None) -> None:
        by = f"it is held by {holder.describe()}" if holder else "its holder is not known"
        super().__init__(
            f"lock {lock_id!r} was not free after {waited_seconds:.3g} s: {by}", lock_id=lock_id
        )
        self.waited_seconds = waited_seconds
        self.holder = holder


class LockServiceUnavailable(LockError):
    """The lease store did not answer and the outage policy is to fail.

    Attributes:
        lock_id: the lock concerned.
        reason: what the store's client said.
    """

    def __init__(self, *, lock_id: str, reason: str) -> None:
        super().__init__(
            f"lock {lock_id!r}: the lease store is unavailable ({reason})",
            lock_id=lock_id,
        )
        self.reason = reason


class DeadlockDetected(LockError):
    """Waiting for the lock would close a circle: each waits for a lock that the next one holds.

    Raised in the one that began to wait last; the others go on. Take several
    locks with `global_locks([…])`, always in the same order, and this cannot
    happen.

    Attributes:
        lock_id: the lock that was waited for.
        circle: each lock in the circle with who holds it, in words, from `lock_id` on.
    """

    def __init__(self, *, lock_id: str, circle: tuple[tuple[str, str], ...]) -> None:
        links = ", ".join(f"{each!r} is held by {who}" for each, who in circle)
        super().__init__(
            f"waiting for lock {lock_id!r} would never end: {links}, which waits for the next "
            f"one in turn. Take the locks together with userlock.global_locks([...]), or always "
            f"in the same order",
            lock_id=lock_id,
        )
        self.circle = circle


class LockOutOfOrder(LockError):
    """The lock was to be taken against the canonical order, while another one is held.

    Raised only where the setting `lock_order` is `raise`. The lock was not taken.

    Attributes:
        lock_id: the lock that was wanted.
        held_lock_id: the lock that is held.
        taken_at: where `lock_id` was to be taken.
        held_at: where the other one had been taken.
        opposite_at: where this process took them the other way round; empty if it was not seen to.
    """

    def __init__(
        self, *, lock_id: str, held_lock_id: str, taken_at: str, held_at: str, opposite_at: str
    ) -> None:
        lines = [
            f"lock {lock_id!r} may not be taken while {held_lock_id!r} is held: two requests that "
            f"take them in different orders wait for each other.",
            f"  to be taken at: {taken_at}",
            f"  held since: {held_at}",
        ]
        if opposite_at:
            lines.append(f"  the other way round at: {opposite_at}")
        lines.append("  To mend it: take both together, with userlock.global_locks([...]).")
        super().__init__("\n".join(lines), lock_id=lock_id)
        self.held_lock_id = held_lock_id
        self.taken_at = taken_at
        self.held_at = held_at
        self.opposite_at = opposite_at


class LockNotHeld(LockError):
    """The lock to release, extend or yield is not held (any more)."""
