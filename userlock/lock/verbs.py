"""The statements of the public API: `global_lock`, `acquire_lock`, `release_lock`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from userlock.errors import LockNotHeld, NoScope
from userlock.lock.lease import (
    Priority,
    check_lock_id,
    check_lock_timeout,
    check_wait_timeout,
)
from userlock.lock.scope import (
    LockScope,
    current_scope,
    default_service,
    defaults,
    enter_scope,
    leave_scope,
)
from userlock.lock.tenure import Tenure, running_code

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
            others out for at most this long (memcached: up to 2 s more).
        priority: `interactive` or `batch`; by default what the scope says.

    Raises:
        LockTimeout: on entry, when somebody else holds it all the time.
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
    ) -> None:
        self.lock_id = check_lock_id(lock_id)
        self.wait_timeout = None if wait_timeout is None else check_wait_timeout(wait_timeout)
        self.lock_timeout = None if lock_timeout is None else check_lock_timeout(lock_timeout)
        self.priority = None if priority is None else Priority.of(priority)

        #: By thread and task, who is inside, the latest last.
        self._inside: dict[tuple[int, int], list[Tenure]] = {}

    def __enter__(self) -> Tenure:
        scope = current_scope()
        opened = None
        if scope is None:
            scope = opened = LockScope(default_service(), defaults.settings, implicit=True)
            enter_scope(opened)
        try:
            tenure = scope.acquire(
                self.lock_id,
                wait_timeout=self.wait_timeout,
                lock_timeout=self.lock_timeout,
                priority=self.priority,
            )
        except BaseException:
            if opened is not None:
                leave_scope(opened)
            raise
        scope.blocks += 1
        self._inside.setdefault(running_code(), []).append(tenure)
        return tenure

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        tenure = self._pop_mine()
        scope = tenure.scope
        failing = error is not None
        scope.blocks -= 1
        try:
            scope.leave(tenure, failing=failing)
        finally:
            if scope.implicit and scope.blocks == 0:
                scope.close(failing=failing)  # of what acquire_lock took inside

    def _pop_mine(self) -> Tenure:
        """The latest entry of this thread and task, or of the one that a generator came from."""
        me = running_code()
        if me not in self._inside:
            me = next(iter(self._inside))
        entries = self._inside[me]
        entry = entries.pop()
        if not entries:
            del self._inside[me]
        return entry

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        if (
            inspect.isgeneratorfunction(function)
            or inspect.iscoroutinefunction(function)
            or inspect.isasyncgenfunction(function)
        ):
            raise _not_while_locked(function)

        @functools.wraps(function)
        def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                result = function(*args, **kwargs)
                if _is_still_to_run(result):
                    raise _not_while_locked(function)
                return result

        return locked


def _is_still_to_run(result: object) -> bool:
    """Whether a function has returned what will run later: without the lock."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        return True
    done = getattr(result, "done", None)  # a future, of ndb or of anybody
    return callable(done) and callable(getattr(result, "result", None)) and not done()


def _not_while_locked(function: Callable[..., object]) -> TypeError:
    return TypeError(
        f"global_lock cannot decorate {getattr(function, '__qualname__', function)}: what it "
        f"returns would run after the lock is released (a generator, coroutine, tasklet or "
        f"future). Use `with userlock.global_lock(…):` inside it"
    )


class _AcquiredLock:
    """What `acquire_lock` returns: good for a `with`, or for `release_lock` later."""

    def __init__(self, tenure: Tenure) -> None:
        self.tenure = tenure

    def __enter__(self) -> Tenure:
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
) -> _AcquiredLock:
    """Take the lock until `release_lock`, or until the scope ends.

    For code that cannot use `with global_lock(…)`. The result also works in
    a `with`. Arguments and errors as in `global_lock`.

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
        lock_id, wait_timeout=wait_timeout, lock_timeout=lock_timeout, priority=priority
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
