"""What one request holds now: scopes, tenures, and `global_lock`.

A scope is a context variable, so threads and greenlets never share one. The
web integration opens one per request; `global_lock` opens one for itself
where there is none (scripts, tests). Locks are re-entrant within a scope, and
leaving the scope releases everything.

A tenure is one uninterrupted holding of one lock by one scope. Released and
taken again is a new tenure: others may have written in between.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import ParamSpec, Protocol, TypeVar

from userlock.errors import LockNotHeld, NoScope, NoService
from userlock.lock.lease import (
    Lease,
    Priority,
    check_lock_id,
    check_lock_timeout,
    check_wait_timeout,
)
from userlock.lock.service import LockService
from userlock.settings import Settings

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Tenure:
    """One uninterrupted holding of one lock by one scope.

    What `with global_lock(…) as lock` gives.

    Attributes:
        lock_id: what is locked.
        scope: who holds it.
    """

    __slots__ = ("_depth", "_released", "_since", "lease", "lock_id", "notes", "scope")

    def __init__(self, scope: LockScope, lease: Lease) -> None:
        self.lock_id = lease.lock_id
        self.scope = scope
        #: The lease that backs it now.
        self.lease = lease
        #: What participants want to remember about it; gone with the tenure.
        self.notes: dict[str, object] = {}
        self._since = scope.service.clock.now()
        self._depth = 1
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
    """Who has a say when locks are taken and left. The model layer is one."""

    def acquired(self, tenure: Tenure) -> None:
        """The lock was freshly taken (not re-entered)."""
        ...

    def leaving(self, tenure: Tenure) -> None:
        """The lock is about to be released: finish what was begun under it.

        What this raises reaches the code that leaves the lock, after the
        release.
        """
        ...

    def postpone(self, tenure: Tenure, release: Callable[[], None]) -> bool:
        """True to keep the lock for now and call `release` later, exactly once."""
        ...


_participants: list[Participant] = []


def register_participant(participant: Participant) -> None:
    """Give `participant` a say from now on, in this process."""
    _participants.append(participant)


class LockScope:
    """What one request holds.

    Args:
        service: where locks come from.
        settings: how the model layer behaves in this scope.
        priority: for locks that are taken without one.
        request: what the request is doing, for others who have to wait for it.
        implicit: opened by `global_lock` for itself; ends with its last lock.
    """

    def __init__(
        self,
        service: LockService,
        settings: Settings,
        *,
        priority: Priority = Priority.INTERACTIVE,
        request: str = "",
        implicit: bool = False,
    ) -> None:
        self.service = service
        self.settings = settings
        self.priority = priority
        self.request = request
        self.implicit = implicit
        #: The locks held now. Replaced, never changed in place, so that whoever keeps a
        #: reference (a read stamp) has a picture of what was held at that moment, for free.
        self.held: Mapping[str, Tenure] = {}
        self._outer: LockScope | None = None

    # --- locks ------------------------------------------------------------------------------

    def acquire(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | str | None = None,
    ) -> Tenure:
        """Take the lock, or enter it once more when this scope has it already."""
        lock_id = check_lock_id(lock_id)
        tenure = self.held.get(lock_id)
        if tenure is not None:
            tenure._depth += 1
            return tenure
        lease = self.service.acquire(
            lock_id,
            wait_timeout=wait_timeout,
            lock_timeout=lock_timeout,
            priority=self.priority if priority is None else priority,
            request=self.request,
        )
        tenure = Tenure(self, lease)
        self.held = {**self.held, lock_id: tenure}
        try:
            for participant in _participants:
                participant.acquired(tenure)
        except BaseException:
            self._release_now(tenure)
            raise
        return tenure

    def release(self, lock_id: str | int, *, failing: bool = False) -> None:
        """Leave the lock; the outermost leave releases it.

        Args:
            lock_id: what to leave.
            failing: an exception is on its way already, so trouble with writes that were
                begun under the lock is logged instead of raised.

        Raises:
            LockNotHeld: this scope does not hold it.
        """
        lock_id = check_lock_id(lock_id)
        tenure = self.held.get(lock_id)
        if tenure is None or tenure._depth == 0:
            raise LockNotHeld(
                f"lock {lock_id!r} is not held by this scope"
                + (f" (held: {', '.join(map(repr, self.held))})" if self.held else ""),
                lock_id=lock_id,
            )
        tenure._depth -= 1
        if tenure._depth == 0:
            self._leave(tenure, failing=failing)

    def _leave(self, tenure: Tenure, *, failing: bool) -> None:
        try:
            self._finish_writes(tenure, failing=failing)
        finally:
            if not any(
                participant.postpone(tenure, functools.partial(self._postponed, tenure))
                for participant in _participants
            ):
                self._release_now(tenure)

    def _finish_writes(self, tenure: Tenure, *, failing: bool) -> None:
        for participant in _participants:
            try:
                participant.leaving(tenure)
            except Exception:
                if not failing:
                    raise
                log.exception("a write under lock %r failed as well", tenure.lock_id)

    def _postponed(self, tenure: Tenure) -> None:
        """The release that a participant put off. Left alone if the lock was entered again."""
        if tenure._depth == 0 and not tenure._released:
            self._release_now(tenure)

    def _release_now(self, tenure: Tenure) -> None:
        tenure._released = True
        self.held = {key: value for key, value in self.held.items() if value is not tenure}
        if self.implicit and not self.held:
            _leave_scope(self)
        self.service.release(tenure.lease, held_seconds=tenure.held_seconds)

    def finish_writes(self) -> None:
        """Wait for the writes that were begun under any lock, and raise what went wrong.

        For web integrations: called before the answer goes out, so that a
        failed write does not end in a success answer.
        """
        for tenure in self.held.values():
            self._finish_writes(tenure, failing=False)

    def close(self, *, failing: bool = False) -> None:
        """Release everything, the latest first, whatever goes wrong with one of them."""
        with contextlib.ExitStack() as stack:
            for tenure in self.held.values():
                stack.callback(self._close_one, tenure, failing)

    def _close_one(self, tenure: Tenure, failing: bool) -> None:
        tenure._depth = 0
        self._leave(tenure, failing=failing)


# --- the current scope ----------------------------------------------------------------------

_current: contextvars.ContextVar[LockScope | None] = contextvars.ContextVar(
    "userlock_scope", default=None
)


def current_scope() -> LockScope | None:
    """The scope that the running code is in, if any."""
    return _current.get()


def _enter_scope(scope: LockScope) -> None:
    scope._outer = _current.get()
    _current.set(scope)


def _leave_scope(scope: LockScope) -> None:
    """Make the scope around `scope` the current one again.

    Set rather than reset with a token: a lock that a transaction keeps is
    released by the transaction, in another context than it was taken in.
    """
    if _current.get() is scope:
        _current.set(scope._outer)


# A forked child shares no lock with its parent: it must neither release the
# parent's leases nor write under them.
os.register_at_fork(after_in_child=lambda: _current.set(None))


class _Defaults:
    """What scopes begin with where nothing is said."""

    def __init__(self) -> None:
        self.service: LockService | None = None
        self.settings = Settings()


defaults = _Defaults()


def default_service() -> LockService:
    """The configured service, or an error that says how to configure one."""
    if defaults.service is None:
        raise NoService(
            "no lock service is configured: call "
            "userlock.configure(service=userlock.LockService.from_url("
            "'memcache://127.0.0.1:11211')) once at start-up, or use "
            "userlock.contrib.flask.UserLock(app, …)"
        )
    return defaults.service


@contextlib.contextmanager
def scope(
    service: LockService | None = None,
    *,
    settings: Settings | None = None,
    priority: Priority | str = Priority.INTERACTIVE,
    request: str = "",
) -> Iterator[LockScope]:
    """Open a scope: whatever is locked inside is released when it is left.

    The web integration does this for each request. Scopes nest; an inner one
    has its own locks and does not see the outer one's.

    Args:
        service: where locks come from; by default the configured service.
        settings: how the model layer behaves inside; by default as configured.
        priority: for locks that are taken without one.
        request: what the code inside is doing, for others who have to wait for it.
    """
    new = LockScope(
        default_service() if service is None else service,
        defaults.settings if settings is None else settings,
        priority=Priority.of(priority),
        request=request,
    )
    _enter_scope(new)
    failing = True
    try:
        yield new
        failing = False
    finally:
        try:
            new.close(failing=failing)
        finally:
            _leave_scope(new)


# --- the public verbs -----------------------------------------------------------------------


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

    def __enter__(self) -> Tenure:
        scope = _current.get()
        opened = None
        if scope is None:
            scope = opened = LockScope(default_service(), defaults.settings, implicit=True)
            _enter_scope(opened)
        try:
            return scope.acquire(
                self.lock_id,
                wait_timeout=self.wait_timeout,
                lock_timeout=self.lock_timeout,
                priority=self.priority,
            )
        except BaseException:
            if opened is not None:
                _leave_scope(opened)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope = _current.get()
        # No scope, or one without the lock: a forked child leaves its parent's
        # block, or the scope was closed inside it. Nothing is held any more.
        if scope is not None and self.lock_id in scope.held:
            scope.release(self.lock_id, failing=error is not None)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def locked(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self:
                return function(*args, **kwargs)

        return locked


class _AcquiredLock:
    """What `acquire_lock` returns: good for a `with`, or for `release_lock` later."""

    def __init__(self, scope: LockScope, tenure: Tenure) -> None:
        self._scope = scope
        self.tenure = tenure

    def __enter__(self) -> Tenure:
        return self.tenure

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.tenure.held:
            self._scope.release(self.tenure.lock_id, failing=error is not None)


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
    scope = _current.get()
    if scope is None:
        raise NoScope(
            "acquire_lock() needs a scope that releases the lock in the end, and there is "
            "none here: use `with userlock.global_lock(lock_id):`, or open a scope with "
            "`with userlock.scope():` (the Flask extension opens one for each request)"
        )
    tenure = scope.acquire(
        lock_id, wait_timeout=wait_timeout, lock_timeout=lock_timeout, priority=priority
    )
    return _AcquiredLock(scope, tenure)


def release_lock(lock_id: str | int) -> None:
    """Leave a lock that `acquire_lock` took.

    Raises:
        LockNotHeld: this scope does not hold it.
    """
    lock_id = check_lock_id(lock_id)
    scope = _current.get()
    if scope is None:
        raise LockNotHeld(f"lock {lock_id!r} is not held: there is no scope here", lock_id=lock_id)
    scope.release(lock_id)
