"""The statements of the public API: `global_lock` and its like."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import ParamSpec, TypeVar

from userlock.errors import LockNotHeld, LockTimeout, NoScope
from userlock.lock.blocks import Entries, decorated
from userlock.lock.held_lock import HeldLock, running_code
from userlock.lock.lease import (
    Holder,
    Priority,
    check_lock_id,
    check_lock_timeout,
    check_wait_timeout,
)
from userlock.lock.record import Waiter
from userlock.lock.scope import (
    LockScope,
    current,
    current_scope,
    default_service,
    defaults,
    enter_scope,
    leave_scope,
)
from userlock.lock.service import LockService

_P = ParamSpec("_P")
_R = TypeVar("_R")


class global_lock:  # noqa: N801 (reads as a statement: `with global_lock(user_id):`)
    """Hold the lock for a block, or for each call of a function.

    `with userlock.global_lock(user_id, wait_timeout=5):` or, as a decorator,
    `@userlock.global_lock("nightly-report")`. Re-entrant within a scope: the
    outermost one releases, after writes that were begun inside have landed,
    and inside a transaction only when the transaction is over.

    Args:
        lock_id: what to lock: a non-empty string (or int), normally the user's id.
        wait_timeout: longest wait in seconds, 0 to try once; by default 10 for interactive
            requests and 60 for batch.
        lock_timeout: length of the lease in seconds, by default 60. A crashed holder keeps
            others out for this long, and until the server's clock shows it: with memcached one
            to three seconds more as a rule, five at most, with other stores up to two.
        priority: `interactive` or `batch`; by default what the scope says.
        heartbeat: True for a short lease (10 s, unless `lock_timeout` says otherwise) that is
            renewed in the background for as long as the lock is held. By default as configured.

    Where the lock is held already, `lock_timeout` changes nothing, and
    `heartbeat=True` begins one.

    The thread waits, and with it all that runs in its event loop: with asyncio,
    take and leave locks in a thread (`asyncio.to_thread`), or a task that waits
    keeps the one that has the lock from going on. Tasklets of ndb are not told
    apart: what one of a request has entered, another enters without waiting.

    Raises:
        LockTimeout: on entry, when somebody else holds it all the time.
        DeadlockDetected: on entry, when the wait would close a circle with other locks.
        LockServiceUnavailable: on entry, when the store is down and the policy is to fail.
        TypeError, ValueError: at once, for arguments that make no sense.
    """

    def __init__(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | str | None = None,
        heartbeat: bool | None = None,
    ) -> None:
        self.lock_id = check_lock_id(lock_id)
        self.wait_timeout = None if wait_timeout is None else check_wait_timeout(wait_timeout)
        self.lock_timeout = None if lock_timeout is None else check_lock_timeout(lock_timeout)
        self.priority = None if priority is None else Priority.of(priority)
        if heartbeat is not None and not isinstance(heartbeat, bool):
            raise TypeError(f"heartbeat must be True, False or None, not {heartbeat!r:.100}")
        self.heartbeat = heartbeat
        self._entries: Entries[HeldLock] = Entries()

    def __enter__(self) -> HeldLock:
        # Some of what is called elsewhere is spelled out here: each lock comes this way.
        scope = current.get()
        if scope is None or scope.closed:
            scope = current_scope()
        opened = None
        if scope is None:
            scope = opened = LockScope(default_service(), defaults.settings, implicit=True)
            enter_scope(opened)
        try:
            tenure = scope.take(
                self.lock_id,
                self.wait_timeout,
                self.lock_timeout,
                self.priority,
                self.heartbeat,
            )
        except BaseException:
            if opened is not None:
                leave_scope(opened)
            raise
        scope.blocks += 1
        self._entries.push(tenure.owner, tenure)
        return tenure

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tenure = self._entries.pop()
        scope = tenure.scope
        failing = error is not None
        scope.blocks -= 1
        try:
            scope.leave(tenure, failing=failing)
        finally:
            if scope.implicit and scope.blocks == 0:
                scope.close(failing=failing)  # of what acquire_lock took inside

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        return decorated(self, function)


class global_locks:  # noqa: N801 (as above)
    """Hold several locks for a block, or for each call of a function: all, or none.

    `with userlock.global_locks([coach_id, *learner_ids]):`. They are taken in
    canonical order (of the ids as strings), whatever order they are given in,
    so two such blocks never wait for each other in a circle. What `with` gives
    is a tuple of tenures, in canonical order as well.

    Args:
        lock_ids: what to lock; an id that is given twice is taken once.
        wait_timeout: longest wait for all of them together, in seconds; by default as long as for
            one.
        lock_timeout: as in `global_lock`, for each.
        priority: as there.
        heartbeat: as there.

    Raises:
        LockTimeout: on entry, when one of them is not free in time; none is held then.
        DeadlockDetected: on entry, when this code holds other locks already, out of order.
        LockServiceUnavailable, TypeError, ValueError: as in `global_lock`.
    """

    def __init__(
        self,
        lock_ids: Iterable[str | int],
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | str | None = None,
        heartbeat: bool | None = None,
    ) -> None:
        if isinstance(lock_ids, str | bytes | int) or not isinstance(lock_ids, Iterable):
            raise TypeError(
                f"global_locks takes lock ids, as a list or the like, not one "
                f"{type(lock_ids).__name__}: {lock_ids!r:.100}"
            )
        #: In canonical order.
        self.lock_ids = tuple(sorted({check_lock_id(lock_id) for lock_id in lock_ids}))
        if not self.lock_ids:
            raise ValueError("global_locks needs at least one lock id")
        self.wait_timeout = None if wait_timeout is None else check_wait_timeout(wait_timeout)
        self._one = functools.partial(
            global_lock, lock_timeout=lock_timeout, priority=priority, heartbeat=heartbeat
        )
        self.priority = self._one(self.lock_ids[0]).priority  # checks the rest at once
        self._entries: Entries[contextlib.ExitStack] = Entries()

    def __enter__(self) -> tuple[HeldLock, ...]:
        scope = current_scope()
        service = default_service() if scope is None else scope.service
        priority = self.priority or (Priority.INTERACTIVE if scope is None else scope.priority)
        wait = self.wait_timeout
        if wait is None:
            wait = service.policy.of(priority).wait_timeout
        started = service.clock.now()
        with contextlib.ExitStack() as stack:
            try:
                tenures = tuple(
                    stack.enter_context(
                        self._one(
                            lock_id,
                            wait_timeout=max(0.0, started + wait - service.clock.now()),
                        )
                    )
                    for lock_id in self.lock_ids
                )
            except LockTimeout as error:
                waited = service.clock.now() - started  # for this lock and those before it
                raise LockTimeout(
                    lock_id=error.lock_id, waited_seconds=waited, holder=error.holder
                ) from None
            self._entries.push(running_code(), stack.pop_all())
        return tenures

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._entries.pop().__exit__(kind, error, traceback)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        return decorated(self, function)


class _AcquiredLock:
    """The lock that `acquire_lock` returns: for a `with`, or for `release_lock` later."""

    def __init__(self, tenure: HeldLock) -> None:
        self.tenure = tenure

    def extend(self, seconds: float) -> None:
        """Let the lease run for `seconds` from now; errors as in `HeldLock.extend`."""
        self.tenure.extend(seconds)

    def __enter__(self) -> HeldLock:
        return self.tenure

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.tenure.scope.leave(self.tenure, failing=error is not None)


def acquire_lock(
    lock_id: str | int,
    *,
    wait_timeout: float | None = None,
    lock_timeout: float | None = None,
    priority: Priority | str | None = None,
    heartbeat: bool | None = None,
) -> _AcquiredLock:
    """Take the lock until `release_lock`, or until the scope ends.

    For code that cannot use `with global_lock(…)`. The result also works in
    a `with`; it has `extend(seconds)`, and the `tenure` for all else.
    Arguments and errors as in `global_lock`.

    Raises:
        NoScope: there is no scope that would release the lock in the end.
    """
    scope = current_scope()
    if scope is None:
        raise NoScope(
            "acquire_lock() needs a scope that releases the lock in the end, and there is "
            "none here: use `with userlock.global_lock(lock_id):`, or open a scope with "
            "`with userlock.scope():` (the Flask extension opens one for each request)"
        )
    tenure = scope.acquire(
        lock_id,
        wait_timeout=wait_timeout,
        lock_timeout=lock_timeout,
        priority=priority,
        heartbeat=heartbeat,
    )
    return _AcquiredLock(tenure)


def release_lock(lock_id: str | int) -> None:
    """Leave a lock that `acquire_lock` took.

    Raises:
        LockNotHeld: this scope does not hold it.
    """
    lock_id = check_lock_id(lock_id)
    scope = current_scope()
    if scope is None:
        raise LockNotHeld(f"lock {lock_id!r} is not held: there is no scope here", lock_id=lock_id)
    scope.release(lock_id)


def with_extension(
    lock_id: str | int,
    operator: Callable[[Callable[[float], None]], _R],
    *,
    lock_timeout: float,
    wait_timeout: float | None = None,
    priority: Priority | str | None = None,
) -> _R:
    """Call `operator(extend)` under a short lease that it pushes out as it goes.

    `extend(seconds)` lets the lease end so many seconds from now, so a crash
    between two steps frees the lock soon. `heartbeat=True` does it in the
    background instead.

    Args:
        lock_id: what to lock.
        operator: gets `extend`, which raises as `HeldLock.extend` does.
        lock_timeout: length of the lease until the first extension, in seconds.
        wait_timeout: as in `global_lock`.
        priority: as there.

    Returns:
        What `operator` returns.
    """
    with global_lock(
        lock_id, lock_timeout=lock_timeout, wait_timeout=wait_timeout, priority=priority
    ) as tenure:
        return operator(tenure.extend)


# --- about locks that others hold -----------------------------------------------------------


def holder(lock_id: str | int) -> Holder | None:
    """Return the holder of the lock, or None.

    Raises:
        LockServiceUnavailable: the store did not answer.
    """
    return _service().holder(lock_id)


def waiters(lock_id: str | int) -> list[Waiter]:
    """Return the waiters of the lock, in the order of service.

    Raises:
        LockServiceUnavailable: the store did not answer.
    """
    return _service().waiters(lock_id)


def break_lock(lock_id: str | int, *, by: str = "") -> Holder | None:
    """End whoever's lease it is, for an operator; see `LockService.break_lock`.

    Raises:
        LockServiceUnavailable: the store did not answer.
    """
    return _service().break_lock(lock_id, by=by)


def _service() -> LockService:
    scope = current_scope()
    return default_service() if scope is None else scope.service
