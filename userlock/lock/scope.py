"""The locks that one request holds.

A scope is a context variable: threads begin without one, and code that copies
context variables (`asyncio.to_thread`, new tasks) shares it. `global_lock` opens
one for itself where there is none (scripts, tests).

Exceptions come at any line: a signal handler raises, a task is cancelled. So
nothing here relies on a line that undoes another. A block is inside for as long as
its `__exit__` lives, which only its `with` statement keeps; a scope is open for as long
as its own block lives, an implicit one as any block inside. Where leaving is interrupted,
the lock is given back later (`_let_go`), or ends with its lease.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from userlock.arguments import check_bool, check_kind
from userlock.errors import EventLoopBlocked, LockError, LockNotHeld, NoScope
from userlock.fork import reset_in_child
from userlock.ids import quoted
from userlock.lock.configuration import default_service, defaults
from userlock.lock.held_lock import HeldLock, check_heartbeat
from userlock.lock.lease import (
    Lease,
    Priority,
    PriorityName,
    check_lock_id,
    check_lock_timeout,
    check_max_waiting,
    check_wait_timeout,
)
from userlock.lock.policy import PriorityPolicy
from userlock.lock.service import LockService, check_service
from userlock.lock.store import StoreUnavailable
from userlock.lock.waiting import Attempt
from userlock.settings import Settings
from userlock.waits import in_event_loop, in_thread, locked, run, running_code

log = logging.getLogger(__name__)

#: Guards the locks of all scopes, and the counts of entries: no code that waits runs under it.
_mutex = threading.RLock()  # the garbage collector may end a block at any time


class End:
    """The end of one block; its scope, tenures and latest attempt, once they are known."""

    scope: LockScope | None = None
    tenures: tuple[HeldLock, ...] = ()
    attempt: Attempt | None = None
    #: To what lives as long as the block: its statement keeps it, and the others keep nothing else.
    reference: weakref.ref[object]
    #: The thread and task that has made it.
    owner: tuple[int, int]

    async def left(self, *, failing: bool) -> None:
        """Leave the locks; the last block ends an implicit scope. Does nothing if that was done."""
        scope = self.scope
        if scope is None:
            return
        try:
            # (On one line, as in `locked`.)
            with _mutex: leaving = scope._block_left(self)  # fmt: skip  # noqa: E701
            if leaving:
                await scope._leave(leaving, failing=failing)
        except BaseException:
            self.drop()
            raise
        finally:
            if scope._implicit and (scope.held or not scope._closed) and not scope._has_blocks:
                await scope.aclose(failing=failing)  # of what acquire_lock took inside

    async def undo(self) -> None:
        """Leave nothing behind: entering was interrupted, or has failed."""
        try:
            await self.left(failing=True)
        finally:
            if self.scope is not None and self.attempt is not None:
                await self.scope.service.undo(self.attempt)

    def drop(self) -> None:
        """Let go of the locks without waiting: leaving them was interrupted, or has failed."""
        if self.scope is not None:
            locked(_mutex, self._drop, self.scope)

    def _drop(self, scope: LockScope) -> None:
        scope._block_left(self)
        for tenure in self.tenures:
            tenure = tenure._latest
            if not (tenure._entered or tenure._postponed):
                scope._let_go(tenure)


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
            nor the policy says; None for no limit. By default that of the scope around.
        held: the locks held now, the latest last; a snapshot, never changed.
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
        self._implicit = implicit
        self.max_waiting: int | None = None
        #: The ends of the blocks inside an implicit scope, which is over with the last.
        self._ends: list[weakref.ref[object]] = []
        #: To what lives as long as the block of another scope, or else the scope itself.
        self._anchor: weakref.ref[object] = weakref.ref(self)
        self._outer: LockScope | None = None
        #: Callers keep it: each change makes a new one.
        self.held: Mapping[str, HeldLock] = {}
        #: The tenures whose lease was over when their lock was taken again inside.
        self._lapsed: list[HeldLock] = []
        self._closed = False
        #: Held while a lease is extended, by its owner or by the renewal thread.
        self._extending = threading.Lock()
        self._when_free: list[Callable[[], object]] = []
        self._generation = _generation
        self._ending = False

    @property
    def _in_child(self) -> bool:
        """Return whether this is a forked child, which must not touch its parent's leases."""
        return self._generation is not _generation

    @property
    def _is_over(self) -> bool:
        """Return whether nothing would release a lock that it holds."""
        if self._ends and self._has_blocks:  # one that waited inside goes on when the others left
            return False
        if self._closed:
            return True
        if not self._implicit:
            return self._anchor() is None
        # A transaction may keep a lock for longer than the last block; hooks run while it is left.
        return not any(
            tenure._postponed or tenure._leaving or tenure._blocks for tenure in self.held.values()
        )

    @property
    def _has_blocks(self) -> bool:
        """Return whether a block is inside that has opened this scope, or was opened in it."""
        return self._ends != [] and any(end() is not None for end in self._ends)

    @property
    def _ended(self) -> bool:
        """Return whether the scope would not release a lock that is taken now."""
        return not self._has_blocks if self._implicit else self._is_over or self._ending

    def acquire(
        self,
        lock_id: str | int,
        *,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | PriorityName | None = None,
        heartbeat: bool | None = None,
        max_waiting: int | None = None,
    ) -> HeldLock:
        """Take the lock, or enter it once more where this thread and task have it already.

        Arguments as in `global_lock`.

        Raises:
            NoScope: the scope has ended, before or during the wait.
        """
        lock_id = check_lock_id(lock_id)
        wait = None if wait_timeout is None else check_wait_timeout(wait_timeout)
        ttl = None if lock_timeout is None else check_lock_timeout(lock_timeout)
        rank = None if priority is None else Priority.of(priority)
        beats = None if heartbeat is None else check_bool("heartbeat", heartbeat)
        most = None if max_waiting is None else check_max_waiting(max_waiting)
        return run(self._acquired, lock_id, wait, ttl, rank, beats, most)

    async def _acquired(
        self,
        lock_id: str,
        wait_timeout: float | None = None,
        lock_timeout: float | None = None,
        priority: Priority | None = None,
        heartbeat: bool | None = None,
        max_waiting: int | None = None,
        end: End | None = None,
        former: HeldLock | None = None,
    ) -> HeldLock:
        """Take the lock as `acquire` does, for a block with that `end`, or back after a yield.

        The arguments are valid. A block may go on after the scope has ended. `former`: the tenure
        that was yielded.
        """
        service = self.service
        if heartbeat:
            check_heartbeat(service)
        if end is None:
            self._check_release(lock_id, former)
        if lock_id in self.held:
            again = locked(_mutex, self._entered_again, lock_id, end)
            if again is not None:
                if heartbeat:
                    again._begin_renewal(heartbeat=True)
                return again
        if not participants:
            find_participants()
        if priority is None:
            priority = self.priority
        defaults = service.policy.interactive
        if priority is Priority.BATCH:
            defaults = self.defaults_of(priority)
        if heartbeat is None and defaults.heartbeat:
            heartbeat = True
            check_heartbeat(service)
        if heartbeat and lock_timeout is None:
            lock_timeout = service.policy.heartbeat_lock_timeout
        if max_waiting is None:
            max_waiting = self.max_waiting if defaults.max_waiting is None else defaults.max_waiting
        # A caller that does not wait completes no deadlock cycle.
        nested = wait_timeout != 0 and (self.held or self._outer is not None)
        attempt = service.attempt(
            lock_id, defaults, wait_timeout, lock_timeout, priority, max_waiting, self.request
        )
        if end is not None:
            end.attempt = attempt
        tenure = None
        try:
            lease = await service.acquired(attempt, _Holding(self) if nested else ())
            if end is None:
                tenure = HeldLock(self, lease, running_code())
            else:
                tenure = HeldLock(self, lease, end.owner, end.reference)
                end.tenures, end.attempt = (*end.tenures, tenure), None
                if self._implicit and end.reference not in self._ends:
                    self._ends.append(end.reference)
            if lock_id in (held := self.held):
                self._lapsed.append(held[lock_id])
            # (On one line, as in `locked`.)
            with _mutex: self.held = {**self.held, lock_id: tenure}  # fmt: skip  # noqa: E701
            if end is None:  # now: the scope's end either finds the lock, or is found here
                locked(_mutex, self._note, tenure, former)
        except BaseException:  # (after its own errors, nothing is left to undo)
            if end is None:  # a block undoes it itself
                if tenure is not None:
                    self._remove(tenure)
                await service.undo(attempt)
            raise
        if heartbeat or (lease.degraded and not service.requests_only):
            tenure._begin_renewal(heartbeat=bool(heartbeat))
        return tenure

    def _note(self, tenure: HeldLock, former: HeldLock | None) -> None:
        """Note that a tenure begins outside of a block, or goes on in it. With the mutex."""
        self._check_release(tenure.lock_id, former)
        if former is not None:  # whose entries go on here
            tenure._owner = former._owner
            tenure._others, tenure._ends = former._others, former._ends
            former._successor = tenure

    def _check_release(self, lock_id: str, former: HeldLock | None) -> None:
        """Raise an error if nothing would release a lock that is taken outside of a block."""
        if former is not None:
            if not former._entered or (self._ended and not former._blocks):
                raise former._refused("cannot be yielded", "was left meanwhile")
        elif self._ended:
            raise NoScope(
                f"lock {quoted(lock_id)} cannot be taken in a scope that has ended. To fix it: use "
                f"`with userlock.global_lock(lock_id):`"
            )

    def _entered_again(self, lock_id: str, end: End | None) -> HeldLock | None:
        """Enter a lock that the running thread and task has, if any. Called with the mutex.

        Not one whose lease is over: another caller may have the lock, so the store is asked.
        """
        tenure = self.held.get(lock_id)
        if tenure is None or tenure._owner != (me := running_code()):
            return None
        if tenure.lost or tenure._ran_out:
            return None
        if not (tenure._entered or tenure._postponed or tenure._leaving == me):
            if tenure._leaving is None:  # its block was interrupted where it would have left it
                self._let_go(tenure)
            return None
        if end is None:
            tenure._others += 1
        else:
            tenure._ends.append(end.reference)
            end.tenures = (*end.tenures, tenure)
            if self._implicit and end.reference not in self._ends:
                self._ends.append(end.reference)
        return tenure

    def defaults_of(self, priority: Priority) -> PriorityPolicy:
        """Return the defaults of a lock of that priority in this scope; see `batch_work`."""
        forgeable = self.priority is Priority.BATCH and not self.batch_work
        return self.service.policy.of(Priority.INTERACTIVE if forgeable else priority)

    def release(self, lock_id: str | int) -> None:
        """Leave the lock; the outermost leave releases it.

        Raises:
            LockNotHeld: this scope does not hold it, or in a block of another task or thread.
        """
        lock_id = check_lock_id(lock_id)
        tenure = self.held.get(lock_id)
        if tenure is None or not tenure._entered:
            held = f" (held: {', '.join(map(quoted, self.held))})" if self.held else ""
            text = f"lock {quoted(lock_id)} is not held by this scope{held}"
            raise LockNotHeld(text, lock_id=lock_id)
        if not tenure._others and tenure._owner != running_code():
            text = f"lock {quoted(lock_id)} is held by a block of another task or thread"
            raise LockNotHeld(text, lock_id=lock_id)
        self._leave_once(tenure)

    def _leave_once(self, tenure: HeldLock, *, failing: bool = False) -> None:
        """Leave a tenure once. Does nothing if it has been released already.

        `failing`: an exception is on its way, so errors of writes are logged instead of raised.
        """
        tenure = tenure._latest
        if locked(_mutex, tenure._left):
            run(self._leave, [tenure], failing=failing)

    def _block_left(self, end: End) -> list[HeldLock]:
        """Note the end of a block; return the locks to release. With the mutex."""
        if end.reference in self._ends:
            self._ends.remove(end.reference)
        leaving = []
        for tenure in end.tenures[::-1]:
            if tenure._successor is not None:
                tenure = tenure._latest
            if end.reference not in tenure._ends:
                continue  # it was left before
            tenure._ends.remove(end.reference)
            if tenure._others and not (tenure._ends or self._implicit) and self._ended:
                # What acquire_lock entered inside would be released by the scope, which has ended.
                tenure._others = 0
            if not (tenure._released or tenure._others or (tenure._ends and tenure._entered)):
                # At once: the renewal thread drops what nobody will leave.
                tenure._leaving = tenure._owner
                leaving += [tenure]
        return leaving

    async def _leave(self, leaving: list[HeldLock], *, failing: bool) -> None:
        """Finish what was begun under locks, and release them, even if that fails for one.

        The first error is raised.
        """
        problem: Exception | None = None
        try:
            for tenure in leaving:
                try:
                    try:
                        tenure._leaving = tenure._owner
                        if tenure._notes and self._generation is _generation:
                            failing = failing or problem is not None
                            await _awrites_finished(tenure, failing)
                    finally:
                        await self._release(tenure)
                        tenure._leaving = None
                except Exception as error:
                    problem = problem or error
            if problem is not None:
                raise problem
        except BaseException:
            for tenure in leaving:
                if not (tenure._returned or tenure._postponed or tenure._entered):
                    self._let_go(tenure)
            raise
        if self._implicit or self._when_free:
            self._settle()

    async def _release(self, tenure: HeldLock, *, at_once: bool = False) -> None:
        """Give a lock back; leave that to a transaction that keeps it, unless `at_once`."""
        in_child = self._generation is not _generation
        if not (at_once or in_child):
            if not participants:
                find_participants()
            for participant in participants:
                if participant.holds(tenure):
                    release = functools.partial(self._postponed_until, tenure)
                    tenure._kept_by = participant.postpone(tenure, release)
                    return
        tenure._kept_by = None
        if self._remove(tenure) and not in_child:  # another thread may leave it at the same time
            lease, service = tenure._lease, self.service
            # Its end is reported once, here or by the renewal thread.
            if tenure.lost or (tenure._renewed_seconds and not tenure._once.pop("report", False)):
                await service.give_back(lease)
            else:
                await service.released(lease, service.clock.now() - tenure._since)
            tenure._returned = True

    def _postponed_until(self, tenure: HeldLock) -> None:
        """Release a lock that a transaction kept, unless it was entered again."""
        tenure._kept_by = None
        if tenure.held and not tenure._entered:
            try:
                run(self._release, tenure, at_once=True)
            except BaseException:
                self._let_go(tenure)
                raise
            self._settle()

    def _settle(self) -> None:
        """End an implicit scope without locks or blocks; call what waits for the end of locks."""
        if self._implicit and not (self._closed or self.held or (self._ends and self._has_blocks)):
            leave_scope(self)
        if self._when_free and not self._in_child:
            self._call_when_free()

    def _remove(self, tenure: HeldLock) -> bool:
        """End a tenure, without its lease. Return False if it has ended already."""
        tenure._released = True
        alone, others = {tenure.lock_id: tenure}, self._not_released
        # (On one line, as in `locked`.)
        with _mutex: self.held = {} if self.held == alone and not self._lapsed else others()  # fmt: skip  # noqa: E501, E701
        if tenure._notes:
            tenure._notes.clear()  # objects that were read under the lock keep the tenure itself
        return tenure._once.pop("release", False)

    def _not_released(self) -> Mapping[str, HeldLock]:
        """Return the locks that are held; one that had lapsed before is there again."""
        rest = [each for each in self._tenures if not each._released]
        held = {each.lock_id: each for each in rest}
        self._lapsed = [each for each in rest if held[each.lock_id] is not each]
        return held

    @property
    def _tenures(self) -> list[HeldLock]:
        """Return the tenures that are not left yet, those included whose lock was taken again."""
        return [*self._lapsed, *self.held.values()]

    def _let_go(self, tenure: HeldLock) -> None:
        """Let go of a lock that nobody will leave, and have it given back later."""
        self._remove(tenure)
        if not tenure._returned:
            tenure._returned = True
            if not self._in_child:
                self.service.release_later(tenure._lease)
        if self._implicit and self._is_over:
            leave_scope(self)

    def when_free(self, callback: Callable[[], object]) -> None:
        """Call a function, which must not raise, as soon as no lock is held here or around."""
        self._when_free.append(callback)
        self._call_when_free()

    def _call_when_free(self) -> None:
        while not self.held:
            try:
                callback = self._when_free.pop(0)
            except IndexError:
                break
            if self._outer is None or self._outer._is_over:
                callback()
            else:
                self._outer.when_free(callback)

    def finish_writes(self) -> None:
        """Wait for the writes under any lock, before a response is sent; raise their errors."""
        for tenure in self._tenures:
            _finish_writes(tenure)

    async def afinish_writes(self) -> None:
        """Wait as `finish_writes` does."""
        for tenure in self._tenures:
            await _awrites_finished(tenure)

    def close(self, *, failing: bool = False, ending: bool = False) -> None:
        """Close as `aclose` does; block until then."""
        run(self.aclose, failing=failing, ending=ending)

    async def aclose(self, *, failing: bool = False, ending: bool = False) -> None:
        """Release all locks, the latest first, even if one of them fails. Take no more if `ending`.

        But those that a transaction keeps, or a block of another thread or task.
        """
        if ending:
            self._ending = True
        try:
            if self.held:
                await self._leave(locked(_mutex, self._leave_all), failing=failing)
        finally:
            self._settle()

    def _leave_all(self) -> list[HeldLock]:
        """Return the tenures that end with the scope, the latest first. With the mutex."""
        me, leaving = running_code(), []
        # If a block has begun since, it ends an implicit scope later.
        shared = self._implicit and self._has_blocks
        for tenure in reversed(self._tenures):
            if tenure._owner == me:
                # A transaction that this scope is not in, and that it has outlived, keeps nothing.
                ends = tenure._entered or not (tenure._postponed and _has_to_stay(tenure))
            else:
                ends = tenure._others > 0 and not (tenure._blocks or shared)
            if ends:
                tenure._others, tenure._ends = 0, []
                leaving.append(tenure)
        return leaving

    def _yield_to_waiters(self, tenure: HeldLock, wait_timeout: float | None) -> HeldLock:
        """Let interactive waiters pass, and take the lock back; see `HeldLock.yield_to_waiters`."""
        tenure = tenure._latest
        if in_event_loop():
            raise EventLoopBlocked(lock_id=tenure.lock_id)
        if not tenure.held or self._in_child:
            why = "belongs to the parent process" if tenure.held else "has been released"
            raise tenure._refused("cannot be yielded", why)
        if _has_to_stay(tenure):
            return tenure
        service, lock_id = self.service, tenure.lock_id
        try:
            record = run(service.client.call, lock_id, service.protocol.look, lock_id)
        except StoreUnavailable:
            return tenure
        if record is None or not record.interactive_waits():
            return tenure
        later = sorted(self._taken_after(tenure), key=lambda each: each.lock_id)
        if any(_has_to_stay(each) for each in later):
            return tenure
        return run(_pass, [tenure, *later], wait_timeout)

    def _taken_after(self, tenure: HeldLock) -> list[HeldLock]:
        """Return the locks that its thread and task have taken since, here and in scopes inside.

        Those that come after it in canonical order.
        """
        held = list(self.held.values())
        if tenure not in held:
            raise tenure._refused("cannot be yielded", "was left meanwhile")
        later = held[held.index(tenure) + 1 :]
        around = list(_scopes_from(current_scope()))
        for scope in around[: around.index(self)] if self in around else ():
            if scope.service is self.service:
                later += scope.held.values()
        return [
            each for each in later if each._owner == tenure._owner and each.lock_id > tenure.lock_id
        ]

    async def _take_back(self, tenure: HeldLock, wait_timeout: float | None) -> HeldLock:
        lease, most = tenure._lease, sys.maxsize  # it had the lock, and must get it back
        seconds = tenure._renewed_seconds or lease.ttl_seconds
        options = wait_timeout, seconds, Priority(lease.priority), tenure._heartbeat, most
        return await self._acquired(tenure.lock_id, *options, former=tenure)


# --- the participants in the release of locks -----------------------------------------------

#: The participants in the release of locks in this process: the model layer's, once it is loaded.
#: Its `leaving(tenure, failing=…)` finishes the writes that were begun under the lock, before the
#: release; an error reaches the code that leaves the lock, after it, unless an exception is on its
#: way (`failing`). `finish_own(tenure)` waits for those that this thread has begun. Where its
#: `holds(tenure)` is true, the lock stays held for now, and `postpone(tenure, release)` calls
#: `release` later; it returns a weak reference to what lives until then.
participants: list[Any] = []


def register_participant(participant: object) -> None:
    """Add a participant, in this process, from now on."""
    participants.append(participant)


def find_participants() -> None:
    """Load the model layer if the process has imported ndb, be it under the lock.

    By name: this package needs neither.
    """
    if not participants and "google.cloud.ndb" in sys.modules:
        importlib.import_module("userlock.ndb")


def _finish_writes(tenure: HeldLock, failing: bool = False) -> None:
    """Finish the writes under a lock; log errors if an exception is on its way (`failing`)."""
    for participant in participants:
        try:
            participant.leaving(tenure, failing=failing)
        except Exception:
            if not failing:
                raise
            log.exception("a write under lock %s failed as well", quoted(tenure.lock_id))


async def _awrites_finished(tenure: HeldLock, failing: bool = False) -> None:
    """Finish the writes under a lock. A task waits in another thread for those of other threads."""
    if in_event_loop():
        for participant in participants:
            participant.finish_own(tenure)
    await in_thread(functools.partial(_finish_writes, tenure, failing))


def _has_to_stay(tenure: HeldLock) -> bool:
    find_participants()
    return any(participant.holds(tenure) for participant in participants)


async def _pass(tenures: list[HeldLock], wait_timeout: float | None) -> HeldLock:
    """Release them, the last first, and take them back; return the first one's successor."""
    for tenure in tenures:
        _finish_writes(tenure)
    new: list[HeldLock] = []
    try:
        for tenure in reversed(tenures):
            await tenure._scope._release(tenure)
        for tenure in tenures:
            new.append(await tenure._scope._take_back(tenure, wait_timeout))
        return new[0]
    except LockError:
        for tenure in reversed(new):  # all, or none
            await tenure._scope._release(tenure)
        raise
    except BaseException:
        for tenure in (*tenures, *(each._latest for each in tenures)):
            if not tenure.held or tenure in new:
                tenure._scope._let_go(tenure)
        raise


class _Holding(Iterable[Lease]):
    """The leases that this code holds in a scope and those around it; listed on contention only."""

    def __init__(self, innermost: LockScope) -> None:
        self._innermost = innermost
        self._owner = running_code()

    def __iter__(self) -> Iterator[Lease]:
        for scope in _scopes_from(self._innermost):
            if scope.service is self._innermost.service:
                for tenure in scope.held.values():
                    has_it = tenure._entered or tenure._postponed
                    if tenure._owner == self._owner and has_it and not tenure._ran_out:
                        yield tenure._lease


def _scopes_from(scope: LockScope | None) -> Iterator[LockScope]:
    """Return a scope and those around it."""
    while scope is not None:
        yield scope
        scope = scope._outer


# --- the current scope ----------------------------------------------------------------------

#: The innermost scope, which may have ended; see `current_scope`.
current: contextvars.ContextVar[LockScope | None] = contextvars.ContextVar(
    "userlock_scope", default=None
)


def current_scope() -> LockScope | None:
    """Return the scope that the running code is in, if any."""
    scope = current.get()
    # Scopes of generators may be left in another order than they were entered.
    while scope is not None:
        if not (scope._closed or scope._implicit) and scope._anchor() is not None:
            break  # nearly always
        if not scope._is_over:
            break
        me = running_code() if scope.held else None
        if me and any(each._owner == me and each._blocks for each in scope.held.values()):
            break
        scope = scope._outer
    return scope


def enter_scope(scope: LockScope) -> None:
    """Make `scope` the current one."""
    scope._outer = current_scope()
    if scope._outer is not None and scope.max_waiting is None:
        scope.max_waiting = scope._outer.max_waiting
    current.set(scope)


def leave_scope(scope: LockScope) -> None:
    """End `scope`; the one around it is the current one again.

    (Without a token: a transaction releases its locks in another context than they were taken in.)
    """
    scope._closed = True
    current.set(current_scope())


# A forked child must neither release its parent's leases nor write under them.
# An object, since a process id may be given again.
_generation = object()


def _after_fork() -> None:
    global _generation, _mutex
    _generation = object()
    _mutex = threading.RLock()
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
    has its own locks and does not see those of the outer one. ndb's tasklets share the
    current scope: open one around tasklets that run at the same time, not within them.

    Args:
        service: the source of locks; by default the configured service.
        settings: the settings of the model layer inside; by default as configured.
        priority: the default priority of locks.
        request: the task of the code inside, for the messages of others that have to wait for it.
    """
    settings = defaults.settings if settings is None else settings
    check_kind("settings", settings, Settings, "userlock.Settings")
    check_kind("request", request, str, "a str")
    new = LockScope(
        default_service() if service is None else check_service(service),
        settings,
        priority=Priority.of(priority),
        request=request,
    )
    anchor = End()  # lives as long as this block
    new._anchor = weakref.ref(anchor)
    failing = True
    try:
        enter_scope(new)
        yield new
        failing = False
    finally:
        try:
            new.close(failing=failing, ending=True)
        finally:
            leave_scope(new)
            del anchor
