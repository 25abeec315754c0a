"""The locks that one request holds.

A scope is a context variable: threads and greenlets begin without one, and
code that copies context variables (`asyncio.to_thread`, new tasks) shares it.
The web integration opens one per request; `global_lock` opens one for itself
where there is none (scripts, tests). Locks are re-entrant for the thread and
task that took them, and leaving the scope releases all of them.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from userlock.errors import EventLoopBlocked, LockNotHeld, NoScope
from userlock.fork import reset_in_child
from userlock.ids import quoted
from userlock.lock.configuration import default_service, defaults
from userlock.lock.held_lock import HeldLock, check_heartbeat, find_participants, participants
from userlock.lock.lease import Lease, Priority, PriorityName, check_lock_id
from userlock.lock.policy import PriorityPolicy
from userlock.lock.service import LockService, check_service
from userlock.lock.store import StoreUnavailable
from userlock.lock.tasks import in_event_loop, running_code
from userlock.settings import Settings

log = logging.getLogger(__name__)


class LockScope:
    """The locks that one request holds.

    Args:
        service: the source of locks.
        settings: the settings of the model layer in this scope.
        priority: the default priority of locks.
        request: the task of the request, for the messages of others that have to wait for it.
        implicit: opened by `global_lock` for itself; ends with the last such block.

    Attributes:
        batch_work: whether it may write entities of batch-only models: as the priority says, but
            for a request whose priority comes from a header that anybody can send. Such a request
            ranks as batch, and has the wait and the lease of an interactive one.
        max_waiting: the most callers of this process that wait for a lock, where neither the call
            nor the policy says; None for no limit. A scope inside begins with that of the one
            around it: it occupies the same thread.
        held: the locks held now, the latest last; a snapshot, never changed.
        blocks: the number of `with global_lock` blocks inside; an implicit scope ends with the
            last.
        outer: the scope around this one.
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
        self.batch_work = priority is Priority.BATCH
        self.request = request
        self.implicit = implicit
        self.max_waiting: int | None = None
        self.closed = False
        self.blocks = 0
        self.outer: LockScope | None = None
        #: The locks held now, the latest last. Callers keep it: each change makes a new one.
        self.held: Mapping[str, HeldLock] = {}
        self._when_free = collections.deque[Callable[[], object]]()
        self._generation = _generation
        self._lock = threading.RLock()  # the garbage collector may end a block at any time
        self._closer: tuple[int, int] | None = None
        self._ending = False

    @property
    def in_child(self) -> bool:
        """Return whether this is a forked child, which must not touch its parent's leases."""
        return self._generation is not _generation

    @property
    def _mutex(self) -> contextlib.AbstractContextManager[object]:
        """Return the mutex of the locks, and of the counts of blocks and entries."""
        # In a forked child another thread may have had it at the fork.
        return self._lock if self._generation is _generation else contextlib.nullcontext()

    @property
    def _ended(self) -> bool:
        """Return whether the scope would not release a lock that is taken now."""
        return not self.blocks if self.implicit else self.closed or self._ending

    @property
    def outlived(self) -> bool:
        """Return whether the running thread and task is in a block here, if the scope has ended."""
        return any(tenure.blocks and tenure.entered for tenure in self._of_running_code())

    def _of_running_code(self) -> Iterator[HeldLock]:
        me = running_code() if self.held else None
        yield from (tenure for tenure in self.held.values() if tenure.owner == me)

    # --- taking -----------------------------------------------------------------------------

    def acquire(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | PriorityName | None = None,
        heartbeat: bool | None = None,
        max_waiting: int | None = None,
        block: bool = False,
        former: HeldLock | None = None,
    ) -> HeldLock:
        """Take the lock, or enter it once more where this thread and task have it already.

        Another thread or task that shares the scope waits for it like any other caller.

        Args:
            lock_id: the lock.
            wait_timeout: as in `global_lock`.
            lock_timeout: as there.
            priority: as there.
            heartbeat: as there.
            max_waiting: as there.
            block: whether a block takes it, which leaves it by `leave_block`. A block in another
                thread may go on after the scope has ended.
            former: the tenure that was yielded, and is taken back.

        Raises:
            NoScope: the scope has ended, before or during the wait, and it is no block.
            LockNotHeld: `former` was left meanwhile.
        """
        lock_id = check_lock_id(lock_id)
        if heartbeat:
            check_heartbeat(self.service)
        with self._mutex:
            self._check_release(lock_id, block, former)
            tenure = self._entered_again(lock_id, block)
        if tenure is not None:
            if heartbeat:
                tenure.begin_renewal(heartbeat=True)
            return tenure
        if not participants:
            find_participants()
        service = self.service
        priority = self.priority if priority is None else Priority.of(priority)
        if heartbeat is None:
            heartbeat = service.heartbeats and self.defaults_of(priority).heartbeat
        if heartbeat:
            check_heartbeat(service)
            if lock_timeout is None:
                lock_timeout = service.policy.heartbeat_lock_timeout
        if self._forgeable:  # else the service has the same defaults
            defaults = self.defaults_of(priority)
            wait_timeout = defaults.wait_timeout if wait_timeout is None else wait_timeout
            lock_timeout = defaults.lock_timeout if lock_timeout is None else lock_timeout
        if max_waiting is None and self.max_waiting is not None:
            said = self.defaults_of(priority).max_waiting
            max_waiting = self.max_waiting if said is None else said
        # A caller that does not wait completes no deadlock cycle.
        nested = wait_timeout != 0 and (self.held or self.outer is not None)
        lease = service.acquire(
            lock_id,
            wait_timeout=wait_timeout,
            lock_timeout=lock_timeout,
            priority=priority,
            max_waiting=max_waiting,
            request=self.request,
            holding=_Holding(self) if nested else (),
        )
        tenure = HeldLock(self, lease)
        try:
            with self._mutex:
                self._check_release(lock_id, block, former)
                if former is not None:
                    former.succeeded_by(tenure)
                elif block:
                    self.blocks += 1
                    tenure.blocks += 1
                tenure.beneath = self.held.get(lock_id)
                self.held = {**self.held, lock_id: tenure}
        except BaseException:  # it ended during the wait, or the thread is being stopped
            service.release(lease)
            raise
        if heartbeat or (lease.degraded and not service.requests_only):
            tenure.begin_renewal(heartbeat=heartbeat)
        return tenure

    def wait_timeout_of(self, priority: Priority | None) -> float:
        """Return the default of `wait_timeout`, in seconds. Of the scope's priority for None."""
        return self.defaults_of(self.priority if priority is None else priority).wait_timeout

    def holds_any(self) -> bool:
        """Return whether the running thread and task holds a lock, here or around."""
        outer = self.outer
        return any(self._of_running_code()) or (outer is not None and outer.holds_any())

    def _check_release(self, lock_id: str, block: bool, former: HeldLock | None) -> None:
        """Raise an error if nothing would release the lock. Called with the mutex.

        A thread may wait for a task that was cancelled; the thread cannot be.
        """
        if former is not None:
            if not former.entered or (self._ended and not former.blocks):
                raise former.not_yielded("was left meanwhile")
        elif not block and self._ended:
            raise NoScope(
                f"lock {quoted(lock_id)} cannot be taken in a scope that has ended. To fix it: use "
                f"`with userlock.global_lock(lock_id):`"
            )

    def _entered_again(self, lock_id: str, block: bool) -> HeldLock | None:
        """Enter a lock that the running thread and task has, if any. Called with the mutex.

        Not one whose lease is over: another caller may have the lock, so the store is asked.
        """
        tenure = self.held.get(lock_id)
        if tenure is None or tenure.owner != (me := running_code()):
            return None
        if tenure.lost or tenure.ran_out:
            return None
        if not (tenure.entered or tenure.postponed or self._closer in (None, me)):
            return None  # it is being released by another thread
        tenure.enter()
        if block:
            self.blocks += 1
            tenure.blocks += 1
        return tenure

    def defaults_of(self, priority: Priority) -> PriorityPolicy:
        """Return the defaults of a lock of that priority in this scope; see `batch_work`."""
        return self.service.policy.of(Priority.INTERACTIVE if self._forgeable else priority)

    @property
    def _forgeable(self) -> bool:
        """Return whether the priority comes from a header that anybody can send."""
        return self.priority is Priority.BATCH and not self.batch_work

    # --- leaving ----------------------------------------------------------------------------

    def release(self, lock_id: str | int) -> None:
        """Leave the lock; the outermost leave releases it.

        Raises:
            LockNotHeld: this scope does not hold it.
        """
        lock_id = check_lock_id(lock_id)
        tenure = self.held.get(lock_id)
        if tenure is None or not tenure.entered:
            held = f" (held: {', '.join(map(quoted, self.held))})" if self.held else ""
            text = f"lock {quoted(lock_id)} is not held by this scope{held}"
            raise LockNotHeld(text, lock_id=lock_id)
        self.leave(tenure)

    def leave(self, tenure: HeldLock, *, failing: bool = False) -> None:
        """Leave a tenure once. Does nothing if it has been released already.

        Args:
            tenure: one of this scope's.
            failing: an exception is on its way already, so errors of writes that were begun
                under the lock are logged instead of raised.
        """
        with self._mutex:
            tenure = tenure.latest
            outermost = tenure.left()
        if outermost:
            self._leave(tenure, failing=failing)

    def leave_block(self, tenure: HeldLock, *, failing: bool = False) -> None:
        """Leave a tenure that a block took; the last block ends an implicit scope.

        Args:
            tenure: as in `leave`.
            failing: as there.
        """
        last = False
        try:
            with self._mutex:
                tenure = tenure.latest
                tenure.blocks -= 1
                self.blocks -= 1
                last = self.implicit and not self.blocks
                # What acquire_lock entered inside would be released by the scope, which has ended.
                entirely = self._ended and not (tenure.blocks or self.implicit) and tenure.entered
                outermost = tenure.left(entirely=entirely)
            if outermost:
                self._leave(tenure, failing=failing)
        finally:
            if last:
                self.close(failing=failing)  # of what acquire_lock took inside

    def _leave(self, tenure: HeldLock, *, failing: bool) -> None:
        if self.in_child:
            self._release_now(tenure)
            return
        try:
            if not participants:
                find_participants()
            if tenure.notes:
                self._finish_writes(tenure, failing=failing)
        finally:
            for participant in participants:
                if participant.holds(tenure):
                    tenure.postponed = True
                    participant.postpone(tenure, functools.partial(self._postponed, tenure))
                    break
            else:
                tenure.postponed = False
                self._release_now(tenure)

    def _finish_writes(self, tenure: HeldLock, *, failing: bool) -> None:
        for participant in participants:
            try:
                participant.leaving(tenure)
            except Exception:
                if not failing:
                    raise
                log.exception("a write under lock %s failed as well", quoted(tenure.lock_id))

    def _postponed(self, tenure: HeldLock) -> None:
        """Release a lock that a participant kept, unless it was entered again."""
        if tenure.held and not tenure.entered:
            self._release_now(tenure)

    def _release_now(self, tenure: HeldLock, *, ending: bool = True) -> None:
        with self._mutex:
            first = tenure.end()  # another thread may leave it at the same time
            if self.held.get(tenure.lock_id) is tenure:
                held = dict(self.held)
                beneath = tenure.beneath
                while beneath is not None and not beneath.held:
                    beneath = beneath.beneath
                if beneath is None:
                    del held[tenure.lock_id]
                else:
                    held[tenure.lock_id] = beneath
                self.held = held
        tenure.notes.clear()  # objects that were read under the lock keep the tenure itself
        # A block whose lock is yielded holds none, and is not over.
        if self.implicit and not self.held and not self.blocks and ending:
            leave_scope(self)
        if not self.in_child:
            if first:
                tenure.give_back()
            if ending:
                self._call_when_free()

    def when_free(self, callback: Callable[[], object]) -> None:
        """Call a function, which must not raise, as soon as no lock is held here or around."""
        self._when_free.append(callback)
        self._call_when_free()

    def _call_when_free(self) -> None:
        while not self.held:
            try:
                callback = self._when_free.popleft()
            except IndexError:
                break
            if self.outer is None or self.outer.closed:
                callback()
            else:
                self.outer.when_free(callback)

    def finish_writes(self) -> None:
        """Wait for the writes under any lock, before a response is sent; raise their errors."""
        for tenure in self._tenures():
            self._finish_writes(tenure, failing=False)

    def _tenures(self) -> list[HeldLock]:
        """Return the tenures that are not left yet, those included whose lock was taken again."""
        return [each for tenure in self.held.values() for each in tenure.and_beneath()]

    def close(self, *, failing: bool = False, ending: bool = False) -> None:
        """Release all locks, the latest first, even if one of them fails. Take no more if `ending`.

        A lock that a transaction keeps is released by the transaction; one whose
        block another thread or task is in, by that block.
        """
        me = running_code()
        with self._mutex:  # (if a block has begun since, it ends an implicit scope later)
            self._closer = me
            self._ending = self._ending or ending
            leaving = [
                tenure
                for tenure in self._tenures()
                if tenure.owner == me or not (self.implicit and self.blocks)
                if tenure.ends_with_scope(me) and tenure.left(entirely=True)
            ]
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_closer", None)  # the scope may go on
            if not self.in_child:
                stack.callback(self._call_when_free)
            if self.implicit and not self.held and not self.closed:
                # A lock was yielded, and could not be taken back.
                stack.callback(leave_scope, self)
            for tenure in leaving:
                stack.callback(self._leave, tenure, failing=failing)

    # --- yielding ---------------------------------------------------------------------------

    def yield_to_waiters(self, tenure: HeldLock, *, wait_timeout: float | None = None) -> HeldLock:
        """Let interactive waiters pass, and take the lock back; see `HeldLock.yield_to_waiters`.

        Args:
            tenure: one of this scope's, or one that it has succeeded.
            wait_timeout: longest wait for each lock that is taken back.
        """
        tenure = tenure.latest
        if in_event_loop():
            raise EventLoopBlocked(lock_id=tenure.lock_id)
        if not tenure.held or self.in_child:
            why = "belongs to the parent process" if tenure.held else "has been released"
            raise tenure.not_yielded(why)
        if _has_to_stay(tenure) or not self._interactive_waits(tenure.lease):
            return tenure
        later = [each for each in self._taken_after(tenure) if each.lock_id > tenure.lock_id]
        if any(_has_to_stay(each) for each in later):
            return tenure
        return _pass([tenure, *sorted(later, key=lambda each: each.lock_id)], wait_timeout)

    def _interactive_waits(self, lease: Lease) -> bool:
        """Return whether an interactive request is queued; False if the store does not answer."""
        service = self.service
        try:
            record = service.client.call(lease.lock_id, service.protocol.look, lease.lock_id)
        except StoreUnavailable:
            return False
        return record is not None and record.interactive_waits()

    def _taken_after(self, tenure: HeldLock) -> Iterator[HeldLock]:
        """Return the locks that its thread and task have taken since, here and in scopes inside."""
        held = list(self.held.values())
        if tenure not in held:
            raise tenure.not_yielded("was left meanwhile")
        later = held[held.index(tenure) + 1 :]
        inner = []
        scope = current_scope()
        while scope is not None and scope is not self:
            inner.append(scope)
            scope = scope.outer
        if scope is self:
            for each in inner:
                if each.service is self.service:
                    later += each.held.values()
        yield from (each for each in later if each.owner == tenure.owner)

    def _take_back(self, tenure: HeldLock, wait_timeout: float | None) -> HeldLock:
        new = self.acquire(
            tenure.lock_id,
            wait_timeout=wait_timeout,
            lock_timeout=tenure.lock_timeout,
            priority=Priority(tenure.lease.priority),
            heartbeat=tenure.heartbeat,
            # It had the lock, and must get it back.
            max_waiting=sys.maxsize,
            former=tenure,
        )
        tenure.hand_on_callbacks()
        return new


def _has_to_stay(tenure: HeldLock) -> bool:
    find_participants()
    return any(participant.holds(tenure) for participant in participants)


def _pass(tenures: list[HeldLock], wait_timeout: float | None) -> HeldLock:
    """Release them, the last first, and take them back; return the first one's successor."""
    for tenure in tenures:
        _scope_of(tenure)._finish_writes(tenure, failing=False)
    for tenure in reversed(tenures):
        _scope_of(tenure)._release_now(tenure, ending=False)
    new: list[HeldLock] = []
    try:
        for tenure in tenures:
            new.append(_scope_of(tenure)._take_back(tenure, wait_timeout))
    except BaseException:
        for tenure in reversed(new):  # all, or none
            _scope_of(tenure)._release_now(tenure, ending=False)
        raise
    return new[0]


def _scope_of(tenure: HeldLock) -> LockScope:
    assert isinstance(tenure.scope, LockScope)
    return tenure.scope


class _Holding(Iterable[Lease]):
    """The leases of one service that this code holds, in a scope and those around it.

    They stay held while code waits for one more lock. Another thread or task
    waits on its own. The leases are listed only if the lock is contended.
    """

    def __init__(self, innermost: LockScope) -> None:
        self._innermost = innermost
        self._owner = running_code()

    def __iter__(self) -> Iterator[Lease]:
        service = self._innermost.service
        scope: LockScope | None = self._innermost
        while scope is not None:
            if scope.service is service:
                for tenure in scope.held.values():
                    if tenure.owner == self._owner and (tenure.entered or tenure.postponed):
                        yield tenure.lease
            scope = scope.outer


# --- the current scope ----------------------------------------------------------------------

#: The innermost scope, which may have ended; see `current_scope`.
current: contextvars.ContextVar[LockScope | None] = contextvars.ContextVar(
    "userlock_scope", default=None
)


def current_scope() -> LockScope | None:
    """Return the scope that the running code is in, if any."""
    scope = current.get()
    # Scopes of generators may be left in another order than they were entered.
    while scope is not None and scope.closed and not scope.outlived:
        scope = scope.outer
    return scope


def enter_scope(scope: LockScope) -> None:
    """Make `scope` the current one."""
    scope.outer = current_scope()
    if scope.outer is not None and scope.max_waiting is None:
        scope.max_waiting = scope.outer.max_waiting
    current.set(scope)


def leave_scope(scope: LockScope) -> None:
    """End `scope`; the one around it is the current one again.

    Set rather than reset with a token: a lock that a transaction keeps is
    released by the transaction, in another context than it was taken in.
    """
    scope.closed = True
    current.set(current_scope())


# A forked child must neither release its parent's leases nor write under them.
# An object, since a process id may be given again.
_generation = object()


def _after_fork() -> None:
    global _generation
    _generation = object()
    current.set(None)


reset_in_child(_after_fork)


@contextlib.contextmanager
def scope(
    service: LockService | None = None,
    *,
    settings: Settings | None = None,
    priority: Priority | PriorityName = Priority.INTERACTIVE,
    request: str = "",
) -> Iterator[LockScope]:
    """Open a scope. Leaving it releases the locks that were taken inside.

    The web integration does this for each request. Scopes nest; an inner one
    has its own locks and does not see those of the outer one.

    Args:
        service: the source of locks; by default the configured service.
        settings: the settings of the model layer inside; by default as configured.
        priority: the default priority of locks.
        request: the task of the code inside, for the messages of others that have to wait for it.
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
            new.close(failing=failing, ending=True)
        finally:
            leave_scope(new)
