"""The statements of the public API: `global_lock` and its like."""

from __future__ import annotations

import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from userlock.arguments import check_bool, check_kind
from userlock.errors import LockNotHeld, LockTimeout, NoScope, TooManyWaiting
from userlock.ids import quoted
from userlock.lock.configuration import default_service, defaults
from userlock.lock.held_lock import HeldLock
from userlock.lock.lease import (
    Holder,
    Priority,
    PriorityName,
    check_lock_id,
    check_lock_timeout,
    check_max_waiting,
    check_wait_timeout,
)
from userlock.lock.record import Waiter
from userlock.lock.scope import End, LockScope, current_scope, enter_scope
from userlock.lock.service import LockService
from userlock.waits import finish, run, running_code

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Value = TypeVar("_Value")


class _Latest(threading.local):
    """The `__exit__` that this thread got last, for the block that begins."""

    reference: weakref.ref[Any] | None = None


_latest = _Latest()


class _Leave:
    """`__exit__` of a block that can be entered many times: each time it is that of another end.

    The `with` statement gets `__exit__` before it calls `__enter__`, and keeps it
    until the block is over, whatever happens. So an `__exit__` that lives is a block that
    runs. (Not the end itself: an exception at the first step of leaving keeps that.)
    An ExitStack gets it of the class, and keeps the block itself, which keeps its ends.
    """

    def __init__(self, leave: Callable[..., Any]) -> None:
        self._leave = leave

    def __get__(self, block: _Block[Any] | None, kind: object) -> Callable[..., Any]:
        if block is None:
            return lambda block, *facts: self._leave(block, End(), *facts)
        end = End()
        leave = partial(self._leave, block, end)
        end.reference, end.owner = weakref.ref(leave), running_code()
        _latest.reference = end.reference
        return leave


class _Block(Generic[_Value]):
    """A context manager that can be entered many times, by many threads and tasks; a decorator."""

    #: The ends of blocks that no `with` statement keeps.
    _kept: list[End]

    async def _entered(self, end: End) -> _Value:
        """Enter; return the value of the `with` statement."""
        raise NotImplementedError

    def _begins(self) -> End:
        """Return the end of the block that begins: of a `with` statement, or kept here."""
        end: End
        reference, _latest.reference = _latest.reference, None
        leave = None if reference is None else reference()
        if leave is not None:
            block, end = leave.args
            if block is self:
                return end
        end = End()
        end.reference, end.owner = weakref.ref(end), running_code()
        self._kept.append(end)
        return end

    def __enter__(self) -> _Value:
        end = self._begins()
        try:
            return run(self._entered, end)
        except BaseException:
            run(end.undo)
            raise

    async def __aenter__(self) -> _Value:
        end = self._begins()
        try:
            return await self._entered(end)
        except BaseException:
            await finish(end.undo)
            raise

    def _leave(self, end: End, kind: object, error: object, traceback: object) -> None:
        if end.scope is None:  # called by hand, or by an ExitStack
            end = self._latest()
        run(end.left, failing=error is not None)

    async def _aleave(self, end: End, kind: object, error: object, traceback: object) -> None:
        if end.scope is None:
            end = self._latest()
        await finish(end.left, failing=error is not None)

    def _latest(self) -> End:
        """Return the latest end of this thread and task, or of the one a generator came from."""
        me = running_code()
        end = ([each for each in self._kept if each.owner == me] or self._kept)[-1]
        self._kept.remove(end)
        return end

    if TYPE_CHECKING:

        def __exit__(self, kind: object, error: object, traceback: object) -> None: ...

        async def __aexit__(self, kind: object, error: object, traceback: object) -> None: ...
    else:
        __exit__ = _Leave(_leave)
        __aexit__ = _Leave(_aleave)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Return `function`, each call of it inside the block; a coroutine's `async with` it.

        Raises:
            TypeError: at once, or at the call, for code that would run after the block is left.
        """
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: _P.args, **kwargs: _P.kwargs) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return cast(Callable[_P, _R], awaited)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise _runs_later(type(self).__name__, function)

        @functools.wraps(function)
        def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                result = function(*args, **kwargs)
                if _is_still_to_run(result):
                    raise _runs_later(type(self).__name__, function)
                return result

        return locked


def _runs_later(statement: str, function: Callable[..., object]) -> TypeError:
    inside = "global_lock" if statement == "with_extension" else statement
    return TypeError(
        f"{statement} cannot call {getattr(function, '__qualname__', function)}: what it "
        f"returns would run after the lock is released (a generator, coroutine, tasklet or "
        f"future). To fix it: use `with userlock.{inside}(…):` inside it, or `async with` in an "
        f"async one"
    )


def _is_still_to_run(result: object) -> bool:
    """Return whether a result is code that would run later, without the lock."""
    if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
        return True
    done = getattr(result, "done", None)  # a future, of ndb or of another library
    return callable(done) and callable(getattr(result, "result", None)) and not done()


class global_lock(_Block[HeldLock]):  # noqa: N801 (reads as a statement: `with global_lock(user_id):`)
    """Hold the lock for a block, or for each call of a function.

    `with userlock.global_lock(user_id, wait_timeout=5):` or, as a decorator,
    `@userlock.global_lock("nightly-report")`. Re-entrant within a scope: the
    outermost one releases, after writes that were begun inside have landed,
    and inside a transaction only when the transaction is over.

    Args:
        lock_id: the lock: a non-empty string (or int), normally the user's id.
        wait_timeout: longest wait in seconds, from 0 (try once) to 86,400; by default 10 for
            interactive requests and 60 for batch.
        lock_timeout: length of the lease in seconds, below 30 days; by default 60, or as long as
            the platform lets a request run (`LockPolicy.of_platform`). A crashed holder keeps
            others out for this long, and until the server's clock shows it: with memcached one to
            three seconds more as a rule, five at most, with other stores up to two.
        priority: `interactive` or `batch`; by default the scope's.
        heartbeat: True for a short lease (10 s, unless `lock_timeout` says otherwise) that is
            renewed in the background for as long as the lock is held, if the renewals of all
            leases of the process together take less than two thirds of it. By default as
            configured.
        max_waiting: the most callers of this process that wait for the lock, this one included;
            0: nobody waits. By default as the policy says, and in a web request 5. Entering a
            lock again, and trying once, do not count.

    Where the lock is held already, `lock_timeout` changes nothing, and
    `heartbeat=True` begins one. If its lease has ended or was lost, the lock is
    not held: the block takes it anew, waiting for another holder if there is one.

    In a coroutine, `async with userlock.global_lock(user_id):` waits, and the event loop goes on. A
    task that is cancelled leaves the queue, or releases the lock, before it ends. A lock that one
    tasklet of ndb has entered, another of the same request enters without waiting.

    Raises:
        LockTimeout: on entry, if the lock is not free in time.
        TooManyWaiting: on entry, if enough callers of this process wait for the lock.
        DeadlockDetected: on entry, if the wait would complete a deadlock cycle.
        EventLoopBlocked: on entry by `with` in a coroutine, if the lock is not free.
        LockServiceUnavailable: on entry, if the store is down and the policy is to fail.
        TypeError, ValueError: at once, for invalid arguments.
    """

    def __init__(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | PriorityName | None = None,
        heartbeat: bool | None = None,
        max_waiting: int | None = None,
    ) -> None:
        self._kept = []
        self.lock_id = check_lock_id(lock_id)
        self.wait_timeout = None if wait_timeout is None else check_wait_timeout(wait_timeout)
        self.lock_timeout = None if lock_timeout is None else check_lock_timeout(lock_timeout)
        self.priority = None if priority is None else Priority.of(priority)
        self.heartbeat = None if heartbeat is None else check_bool("heartbeat", heartbeat)
        self.max_waiting = None if max_waiting is None else check_max_waiting(max_waiting)

    async def _entered(self, end: End, wait_timeout: float | None = None) -> HeldLock:
        scope = current_scope()
        if scope is None:
            scope = LockScope(default_service(), defaults.settings, implicit=True)
            end.scope = scope
            scope._ends.append(end.reference)
            enter_scope(scope)
        end.scope = scope
        wait_timeout = self.wait_timeout if wait_timeout is None else wait_timeout
        options = self.lock_timeout, self.priority, self.heartbeat, self.max_waiting
        return await scope._acquired(self.lock_id, wait_timeout, *options, end)


class global_locks(_Block[tuple[HeldLock, ...]]):  # noqa: N801 (as above)
    """Hold several locks for a block, or for each call of a function: all, or none.

    `with userlock.global_locks([coach_id, *learner_ids]):`. They are taken in
    canonical order (of the ids as strings), whatever order they are given in,
    so two such blocks cannot deadlock. The value of `with` is a tuple of held
    locks, in canonical order as well. In a coroutine: `async with`.

    A mapping takes them in the order of its roles, and in canonical order within each:

        with userlock.global_locks({"self": user_id, "children": child_ids, "coach": coach_id}):

    Then the order is the app's: blocks of different users may meet (a coach who
    is somebody's child). One of them gets `DeadlockDetected`.

    Args:
        lock_ids: the locks; an id that is given twice is taken once. Or roles, each with an id,
            several, or None.
        wait_timeout: longest wait for all of them together, in seconds; by default as long as for
            one.
        lock_timeout: as in `global_lock`, for each.
        priority: as there.
        heartbeat: as there.
        max_waiting: as there, for each.

    Raises:
        LockTimeout: on entry, if one of them is not free in time, or the lease of one ends while
            another is waited for; none is held then.
        TooManyWaiting: on entry, if enough callers of this process wait for one of them; as above.
        DeadlockDetected: on entry, if the caller holds other locks already, out of order.
        EventLoopBlocked, LockServiceUnavailable, TypeError, ValueError: as in `global_lock`.
    """

    def __init__(
        self,
        lock_ids: Iterable[str | int] | Mapping[str, str | int | Iterable[str | int] | None],
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | PriorityName | None = None,
        heartbeat: bool | None = None,
        max_waiting: int | None = None,
    ) -> None:
        if isinstance(lock_ids, str | bytes | int) or not isinstance(lock_ids, Iterable):
            raise TypeError(
                f"global_locks takes lock ids, as a list or the like, not one "
                f"{type(lock_ids).__name__}"
            )
        self._kept = []
        #: In the order in which they are taken.
        self.lock_ids = tuple(_in_order(lock_ids))
        if not self.lock_ids:
            raise ValueError("global_locks needs at least one lock id")
        self.wait_timeout = None if wait_timeout is None else check_wait_timeout(wait_timeout)
        self._locks = [
            global_lock(
                lock_id,
                lock_timeout=lock_timeout,
                priority=priority,
                heartbeat=heartbeat,
                max_waiting=max_waiting,
            )
            for lock_id in self.lock_ids
        ]

    async def _entered(self, end: End) -> tuple[HeldLock, ...]:
        scope = current_scope() or LockScope(default_service(), defaults.settings)
        now = scope.service.clock.now
        began, wait_timeout = now(), self.wait_timeout
        if wait_timeout is None:
            priority = self._locks[0].priority or scope.priority
            wait_timeout = scope.defaults_of(priority).wait_timeout
        held = []
        for lock in self._locks:
            left = max(0.0, began + wait_timeout - now())
            try:
                held.append(await lock._entered(end, left))
            except TooManyWaiting:
                raise
            except LockTimeout as error:
                waited, holder = now() - began, error.holder  # for this lock and those before it
                raise LockTimeout(
                    lock_id=lock.lock_id, waited_seconds=waited, holder=holder
                ) from None
        over = next((each.lock_id for each in held if not each.expires_in), None)
        if over is not None:
            late = LockTimeout(lock_id=over, waited_seconds=now() - began, holder=None)
            late.add_note(
                "Its lease ended while another one of the locks was waited for. To fix it: give "
                "lock_timeout= more than wait_timeout=, or heartbeat=True"
            )
            raise late
        return tuple(held)


def _in_order(
    lock_ids: Iterable[str | int] | Mapping[str, str | int | Iterable[str | int] | None],
) -> list[str]:
    """Return lock ids, each once: by role, and within a role in canonical order."""
    if not isinstance(lock_ids, Mapping):
        return sorted({check_lock_id(lock_id) for lock_id in lock_ids})
    found: dict[str, None] = {}
    for role, some in lock_ids.items():
        several = [some] if isinstance(some, str | int) else () if some is None else some
        if isinstance(several, bytes | Mapping) or not isinstance(several, Iterable):
            raise TypeError(
                f"the role {role!r:.100} of global_locks must have a lock id, several, or None, "
                f"not one {type(some).__name__}"
            )
        found.update(dict.fromkeys(_in_order(several)))
    return list(found)


class _AcquiredLock:
    """The result of `acquire_lock`: for a `with`, or for `release_lock` later."""

    def __init__(self, tenure: HeldLock) -> None:
        self.tenure = tenure
        self.extend = tenure.extend

    def __enter__(self) -> HeldLock:
        return self.tenure

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.tenure._scope._leave_once(self.tenure, failing=error is not None)


def acquire_lock(
    lock_id: str | int,
    *,
    wait_timeout: float | None = None,
    lock_timeout: float | None = None,
    priority: Priority | PriorityName | None = None,
    heartbeat: bool | None = None,
    max_waiting: int | None = None,
) -> _AcquiredLock:
    """Take the lock until `release_lock`, or until the scope ends.

    For code that cannot use `with global_lock(…)`. The result also works in a `with`; it has
    `extend(seconds)`, and `tenure`, the `HeldLock`. Arguments and errors as in `global_lock`.

    Raises:
        NoScope: there is no scope that would release the lock at its end, or it has ended.
    """
    scope = current_scope()
    if scope is None:
        raise NoScope(
            "acquire_lock() needs a scope that releases the lock at its end, and there is "
            "none here. To fix it: use `with userlock.global_lock(lock_id):`, or open a scope with "
            "`with userlock.scope():`. Web integrations open one for each request; those of Flask "
            "and Django end it, and ndb's context, before a streamed response runs"
        )
    tenure = scope.acquire(
        lock_id,
        wait_timeout=wait_timeout,
        lock_timeout=lock_timeout,
        priority=priority,
        heartbeat=heartbeat,
        max_waiting=max_waiting,
    )
    return _AcquiredLock(tenure)


def release_lock(lock_id: str | int) -> None:
    """Leave a lock that `acquire_lock` took.

    Raises:
        LockNotHeld: this scope does not hold it, or in a block of another task or thread.
    """
    lock_id = check_lock_id(lock_id)
    scope = current_scope()
    if scope is None:
        why = "there is no scope here"
        raise LockNotHeld(f"lock {quoted(lock_id)} is not held: {why}", lock_id=lock_id)
    scope.release(lock_id)


def with_extension(
    lock_id: str | int,
    operator: Callable[[Callable[..., None]], _R],
    *,
    lock_timeout: float = 60.0,
    wait_timeout: float | None = None,
    priority: Priority | PriorityName | None = None,
    max_waiting: int | None = None,
) -> _R:
    """Call `operator(extend)` under a short lease that it extends between its steps.

    `extend(seconds)` and `extend(by=seconds)` as in `HeldLock.extend`: a crash between two steps
    frees the lock soon. `heartbeat=True` does the same in the background.

    Args:
        lock_id: the lock.
        operator: gets `extend`, which raises as `HeldLock.extend` does.
        lock_timeout: length of the lease until the first extension, in seconds.
        wait_timeout: as in `global_lock`.
        priority: as there.
        max_waiting: as there.

    Returns:
        The result of `operator`.

    Raises:
        TypeError: `operator` is asynchronous, or returns something that would run later.
    """
    # Before the lock is taken.
    check_kind("operator", operator, Callable, "a function")
    if inspect.iscoroutinefunction(operator):
        raise _runs_later("with_extension", operator)
    with global_lock(
        lock_id,
        lock_timeout=lock_timeout,
        wait_timeout=wait_timeout,
        priority=priority,
        max_waiting=max_waiting,
    ) as tenure:
        result = operator(tenure.extend)
        if _is_still_to_run(result):
            raise _runs_later("with_extension", operator)
        return result


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
    """End the present lease of a lock, for an operator; see `LockService.break_lock`.

    Raises:
        LockServiceUnavailable: the store did not answer.
    """
    return _service().break_lock(lock_id, by=by)


def _service() -> LockService:
    scope = current_scope()
    return default_service() if scope is None else scope.service
