"""The locks that one request holds.

A scope is a context variable: threads and greenlets begin without one, and
what copies context variables (`asyncio.to_thread`, new tasks) shares it. The
web integration opens one per request; `global_lock` opens one for itself
where there is none (scripts, tests). Locks are re-entrant for the thread and
task that took them, and leaving the scope releases everything.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import os
import threading
from collections.abc import Iterator, Mapping

from userlock.errors import LockNotHeld, NoScope, NoService
from userlock.lock.held_lock import HeldLock, participants, running_code
from userlock.lock.holding import Holding
from userlock.lock.keeping import Keeping, check_heartbeat
from userlock.lock.lease import Priority, check_lock_id
from userlock.lock.passing import let_people_pass
from userlock.lock.service import LockService, check_service
from userlock.settings import Settings

log = logging.getLogger(__name__)


class LockScope:
    """The locks that one request holds.

    Args:
        service: where locks come from.
        settings: how the model layer behaves in this scope.
        priority: for locks that are taken without one.
        request: what the request is doing, for others who have to wait for it.
        implicit: opened by `global_lock` for itself; ends with the last such block.
    """

    #: Whether somebody may keep `_held`, so that it must not be changed in place any more.
    _shown = False

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
        #: Whether it may write what only batch work writes: as the priority says, but for a
        #: request that has its priority by a header that anybody can send.
        self.batch_work = priority is Priority.BATCH
        self.request = request
        self.implicit = implicit
        self._held: dict[str, HeldLock] = {}
        self.closed = False
        #: How many `with global_lock` blocks are inside; an implicit scope ends with the last.
        self.blocks = 0
        self.outer: LockScope | None = None
        self._pid = _pid
        self._mutex = threading.Lock()

    @property
    def held(self) -> Mapping[str, HeldLock]:
        """The locks held now, the latest last: a picture that later changes leave as it is."""
        if self._pid != _pid:
            return self._held  # another thread may have had the mutex at the fork
        with self._mutex:
            self._shown = True
            return self._held

    def _leave_picture(self) -> None:
        """Copy the locks before a change, so that earlier readers keep their snapshot.

        Not each time: thousands of locks in one scope would pay for one another.
        Called with the mutex.
        """
        self._held = self._held.copy()
        self._shown = False

    # --- locks ------------------------------------------------------------------------------

    def acquire(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | str | None = None,
        heartbeat: bool | None = None,
    ) -> HeldLock:
        """Take the lock, or enter it once more where this thread and task have it already.

        Another thread or task that shares the scope waits for it like anybody.
        """
        return self.take(check_lock_id(lock_id), wait_timeout, lock_timeout, priority, heartbeat)

    def take(
        self,
        lock_id: str,
        wait_timeout: float | None,
        lock_timeout: float | None,
        priority: Priority | str | None,
        heartbeat: bool | None,
    ) -> HeldLock:
        """`acquire` for the statements, which have checked the lock id."""
        if self.closed:
            raise NoScope(f"lock {lock_id!r} cannot be taken in a scope that has ended")
        tenure = self._held.get(lock_id)
        if tenure is not None and tenure.owner == running_code():
            if heartbeat:
                self._begin_heartbeat(tenure)
            tenure._depth += 1
            return tenure
        service = self.service
        if priority is None:
            priority = self.priority
        elif type(priority) is not Priority:
            priority = Priority.of(priority)
        if heartbeat is None:
            heartbeat = service.heartbeats and service.policy.of(priority).heartbeat
        if heartbeat:
            check_heartbeat(self.service)
        if heartbeat and lock_timeout is None:
            lock_timeout = service.policy.heartbeat_lock_timeout
        lease = service.acquire(
            lock_id,
            wait_timeout=wait_timeout,
            lock_timeout=lock_timeout,
            priority=priority,
            request=self.request,
            # Whoever does not wait closes no circle.
            holding=Holding(self) if wait_timeout != 0 and (self._held or self.outer) else (),
        )
        tenure = HeldLock(self, lease)
        with self._mutex:
            if self._shown:
                self._leave_picture()
            self._held[lock_id] = tenure
        if heartbeat or (lease.degraded and not service.requests_only):
            Keeping(tenure, service, heartbeat=heartbeat).begin()
        return tenure

    def _begin_heartbeat(self, tenure: HeldLock) -> None:
        """For a lock that was taken without, and is entered again with one."""
        keeping = tenure._keeping
        if keeping is None:
            check_heartbeat(self.service)
            Keeping(tenure, self.service, heartbeat=True).begin()
        elif not keeping.heartbeat:
            keeping.heartbeat = True
            keeping.extended(tenure)

    def yield_to_waiters(self, tenure: HeldLock, *, wait_timeout: float | None = None) -> HeldLock:
        """Let a waiting person pass, if there is one, and take the lock back.

        See `HeldLock.yield_to_waiters`.
        """
        return let_people_pass(tenure, current_scope(), wait_timeout=wait_timeout)

    def release(self, lock_id: str | int) -> None:
        """Leave the lock; the outermost leave releases it.

        Raises:
            LockNotHeld: this scope does not hold it.
        """
        lock_id = check_lock_id(lock_id)
        tenure = self._held.get(lock_id)
        if tenure is None or tenure._depth == 0:
            raise LockNotHeld(
                f"lock {lock_id!r} is not held by this scope"
                + (f" (held: {', '.join(map(repr, self.held))})" if self.held else ""),
                lock_id=lock_id,
            )
        self.leave(tenure)

    def leave(self, tenure: HeldLock, *, failing: bool = False) -> None:
        """Leave a tenure once. Nothing happens when it has been released already.

        Args:
            tenure: one of this scope's.
            failing: an exception is on its way already, so trouble with writes that were
                begun under the lock is logged instead of raised.
        """
        while tenure._successor is not None:  # the lock was yielded and taken back
            tenure = tenure._successor
        if tenure._released or tenure._depth == 0:
            return
        tenure._depth -= 1
        if tenure._depth == 0:
            self._leave(tenure, failing=failing)

    def _leave(self, tenure: HeldLock, *, failing: bool) -> None:
        if self._pid != _pid:
            self._release_now(tenure)
            return
        try:
            if tenure.notes:
                self._finish_writes(tenure, failing=failing)
        finally:
            for participant in participants:
                if participant.holds(tenure):
                    tenure._postponed = True
                    participant.postpone(tenure, functools.partial(self._postponed, tenure))
                    break
            else:
                tenure._postponed = False
                self._release_now(tenure)

    def _finish_writes(self, tenure: HeldLock, *, failing: bool) -> None:
        for participant in participants:
            try:
                participant.leaving(tenure)
            except Exception:
                if not failing:
                    raise
                log.exception("a write under lock %r failed as well", tenure.lock_id)

    def _postponed(self, tenure: HeldLock) -> None:
        """The release that a participant put off. Left alone if the lock was entered again."""
        if tenure._depth == 0 and not tenure._released:
            self._release_now(tenure)

    @property
    def _in_a_fork(self) -> bool:
        """Return whether this is a forked child, which must not touch its parent's leases."""
        return self._pid != _pid

    def _release_now(self, tenure: HeldLock, *, ending: bool = True) -> None:
        tenure._released = True
        tenure.notes.clear()  # objects that were read under it keep the tenure itself
        if self._pid != _pid:
            self._mutex = threading.Lock()  # another thread may have held it at the fork
        with self._mutex:
            if self._shown:
                self._leave_picture()
            if self._held.get(tenure.lock_id) is tenure:
                del self._held[tenure.lock_id]
        if self.implicit and not self._held and ending:
            leave_scope(self)
        if self._pid == _pid:
            service = self.service
            if tenure.lost or (tenure._keeping is not None and not tenure.first_to_end()):
                service.give_back(tenure.lease)  # what became of it has been said
            else:
                service.release(tenure.lease, held_seconds=service.clock.now() - tenure._since)

    def finish_writes(self) -> None:
        """Wait for the writes that were begun under any lock, and raise what went wrong.

        For web integrations: called before the answer goes out, so that a
        failed write does not end in a success answer.
        """
        for tenure in self.held.values():
            self._finish_writes(tenure, failing=False)

    def close(self, *, failing: bool = False) -> None:
        """Release everything, the latest first, whatever goes wrong with one of them.

        What a transaction keeps is released by the transaction.
        """
        with contextlib.ExitStack() as stack:
            if self.implicit and not self._held and not self.closed:
                # A lock was yielded, and could not be taken back.
                stack.callback(leave_scope, self)
            for tenure in self.held.values():
                stack.callback(self._close_one, tenure, failing)

    def _close_one(self, tenure: HeldLock, failing: bool) -> None:
        if not tenure._postponed or tenure._depth > 0:
            tenure._depth = 0
            self._leave(tenure, failing=failing)


# --- the current scope ----------------------------------------------------------------------

#: The innermost scope, which may have ended; see `current_scope`.
current: contextvars.ContextVar[LockScope | None] = contextvars.ContextVar(
    "userlock_scope", default=None
)


def current_scope() -> LockScope | None:
    """Return the scope that the running code is in, if any."""
    scope = current.get()
    # Scopes of generators may be left in another order than they were entered.
    while scope is not None and scope.closed:
        scope = scope.outer
    return scope


def enter_scope(scope: LockScope) -> None:
    """Make `scope` the current one."""
    scope.outer = current_scope()
    current.set(scope)


def leave_scope(scope: LockScope) -> None:
    """End `scope`; the one around it is the current one again.

    Set rather than reset with a token: a lock that a transaction keeps is
    released by the transaction, in another context than it was taken in.
    """
    scope.closed = True
    current.set(current_scope())


# A forked child shares no lock with its parent: it must neither release the
# parent's leases nor write under them.
_pid = os.getpid()


def _after_fork() -> None:
    global _pid
    _pid = os.getpid()
    current.set(None)


os.register_at_fork(after_in_child=_after_fork)


class _Defaults:
    """The defaults of new scopes."""

    def __init__(self) -> None:
        self.service: LockService | None = None
        self.settings = Settings()


defaults = _Defaults()


def default_service() -> LockService:
    """Return the configured service, or an error that says how to configure one."""
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
        default_service() if service is None else check_service(service),
        defaults.settings if settings is None else settings,
        priority=Priority.of(priority),
        request=request,
    )
    enter_scope(new)
    failing = True
    try:
        yield new
        failing = False
    finally:
        try:
            new.close(failing=failing)
        finally:
            leave_scope(new)
