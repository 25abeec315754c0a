"""asyncio: threads wait on behalf of tasks, so that the event loop goes on.

The lock's code is the same for threads and tasks: it calls the store and waits.
For a task it runs in a thread of its own, which leaves nothing behind when the
task is cancelled:

    the event loop            a thread                    the store
    async with ──────────────▶ create ──────────────────▶ refused
    (other tasks run)          queue up, wait
    the task is cancelled
    cancel, ring the bell ───▶ leave ───────────────────▶ out of the queue
    CancelledError ◀──────────

An asyncio client of each store would need a second implementation of the
protocol, with its own tests. A task that waits costs 35 kB with its thread, and
in a web request waiters are bounded (`max_waiting`).

The threads are full when there are 500, or when the system refuses another
one. A further task tries once if none of the threads waits for the same lock, and
takes a free lock. Otherwise it waits for a thread, no longer than it would wait
for the lock, and tries a last time. A task that holds a lock gets a thread above
the 500: they may be waiting for it. (A thousand threads that wake up at once
take seconds to respond.)

Releases have threads of their own. Otherwise waiters could occupy every thread
while they wait for a holder that needs one to release. Tries have threads of
their own, too: a thousand of them would delay the releases.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from userlock.bell import Bell
from userlock.clock import Clock
from userlock.errors import EventLoopBlocked, LockTimeout
from userlock.fork import reset_in_child

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Tasks of a process that wait at once, that release at once, and that try at once. More of them
#: take turns.
_MOST_WAITING = 500
_MOST_AT_ONCE = 8
#: A thread that has stood idle for so long ends.
_IDLE_SECONDS = 10.0


class WaitCancelled(BaseException):
    """The task on whose behalf a thread waits was cancelled. It never leaves this package."""


class Errand:
    """One call in a thread on behalf of a task.

    Args:
        began: the time of the task's call, by the service's clock; None for a release.
        may_wait: whether the call may wait for a lock; otherwise it raises `EventLoopBlocked`.

    Attributes:
        owner: the thread and the task, as `running_code` returns them.
        loop: the task's event loop.
        future: the call's, as soon as it is submitted.
        abandoned: whether nobody will take the call's result.
    """

    def __init__(self, began: float | None = None, *, may_wait: bool = True) -> None:
        self.owner = running_code()
        self.loop = asyncio.get_running_loop()
        self._began = began
        self.may_wait = may_wait
        self.abandoned = False
        self.future: concurrent.futures.Future[Any] | None = None
        self._bell: Bell | None = None
        self._cancelled = False

    def cancel(self) -> bool:
        """Make a wait end. Return whether the call was withdrawn before it began."""
        self._cancelled = True
        if self.withdraw():
            return True
        bell = self._bell
        if bell is not None:
            bell.ring()
        return False

    def withdraw(self) -> bool:
        """Withdraw the call if it has not begun. Return whether it was withdrawn."""
        return self.future is not None and self.future.cancel()

    def take_begin(self) -> float | None:
        """Return the time of the task's call, once: a listener's own calls begin later."""
        began, self._began = self._began, None
        return began

    def listen(self, bell: Bell) -> None:
        """Ring this bell at a cancellation."""
        self._bell = bell

    def check(self) -> None:
        """Raise `WaitCancelled` if the task was cancelled, or its event loop was closed."""
        if self._cancelled or self.loop.is_closed():
            raise WaitCancelled


class _Present(threading.local):
    """The errand of this thread."""

    errand: Errand | None = None


_present = _Present()


def present_errand() -> Errand | None:
    """Return the errand of this thread, if it runs on behalf of a task."""
    return _present.errand


def in_event_loop() -> bool:
    """Return whether an asyncio event loop runs in this thread: a wait would block it."""
    return asyncio._get_running_loop() is not None


def may_wait() -> bool:
    """Return whether the running code may wait for a lock."""
    errand = _present.errand
    return not in_event_loop() if errand is None else errand.may_wait


def running_code() -> tuple[int, int]:
    """Return the running thread, and the asyncio task if there is one.

    Several threads and tasks may share a scope (`asyncio.to_thread` and new
    tasks copy context variables). Each enters a lock on its own account.
    """
    errand = _present.errand
    if errand is not None:
        return errand.owner
    task = 0
    if asyncio._get_running_loop() is not None:
        task = id(asyncio.current_task())
    return threading.get_ident(), task


async def waited(
    call: Callable[[float], _R],
    undo: Callable[[_R], object],
    wait_timeout: float,
    *,
    clock: Clock,
    holding: Callable[[], bool],
    contended: Callable[[], object],
) -> _R:
    """Return the result of a call that may wait for a lock.

    Args:
        call: the call. It is given its longest wait, in seconds.
        undo: is called with its result if nobody takes it: the task was cancelled meanwhile, or
            its event loop was closed.
        wait_timeout: longest wait in seconds, for a thread as well.
        clock: the clock of the wait.
        holding: returns whether the task holds a lock, for which others may be waiting.
        contended: returns whether others of this process wait for the same lock.
    """
    began = clock.now()
    try_once = functools.partial(call, 0.0)
    wait = functools.partial(call, wait_timeout)
    waiting, trying = _threads.waiting, _threads.trying
    with contextlib.suppress(_NoThread):
        return await _outcome(Errand(began), waiting, wait, undo, limit=0.0)
    if wait_timeout <= 0:
        return await _outcome(Errand(began), trying, try_once, undo)
    if holding():
        with contextlib.suppress(_NoThread):
            return await _outcome(Errand(began), waiting, wait, undo, limit=0.0, above=True)
    left = wait_timeout
    if not contended():
        errand = Errand(began, may_wait=False)
        with contextlib.suppress(EventLoopBlocked, _NoThread):
            return await _outcome(errand, trying, wait, undo, limit=wait_timeout)
        left = max(wait_timeout - (clock.now() - began), 0.0)
    with contextlib.suppress(_NoThread):
        return await _outcome(Errand(began), waiting, wait, undo, limit=left)
    try:
        return await _outcome(Errand(began), trying, try_once, undo)
    except LockTimeout as error:
        error.add_note("no thread was free for the wait: let fewer tasks wait at once")
        raise


class _NoThread(Exception):
    """No thread was free for the call in time, or the system has none left."""


async def _outcome(
    errand: Errand,
    threads: Threads,
    call: Callable[[], _R],
    undo: Callable[[_R], object],
    *,
    limit: float | None = None,
    above: bool = False,
) -> _R:
    """Return the result of a call in a thread; undo it if nobody takes it.

    Args:
        errand: for the task.
        threads: for the call.
        call: the call.
        undo: as in `waited`.
        limit: longest wait for a thread, in seconds; None: any time. A call that does not wait for
            a lock runs in the event loop if there are no threads at all.
        above: as in `Threads.submit`.

    Raises:
        _NoThread: the call has not begun, and never will.
    """

    done: list[_R] = []

    def undo_it() -> None:
        with contextlib.suppress(IndexError):  # not yet, or by the other thread
            undo(done.pop())

    def abandon() -> None:
        errand.abandoned = True
        errand.cancel()
        undo_it()

    def call_or_undo() -> _R:
        result = call()
        done.append(result)
        if errand.abandoned or errand.loop.is_closed():
            undo_it()
        return result

    try:
        future = _submit(threads, errand, call_or_undo, at_once=limit == 0.0, above=above)
    except RuntimeError:
        if limit is not None and errand.may_wait:
            raise _NoThread from None
        return _run(errand, call)
    except BaseException:  # this thread is being stopped; the other one may have begun
        abandon()
        raise
    try:
        try:
            if limit:
                await asyncio.wait([future], timeout=limit)
                if errand.withdraw():
                    raise _NoThread
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if errand.cancel():
                raise
            await _settled(future)
            if done:
                with contextlib.suppress(Exception):
                    await finished(undo_it)
            raise
    except GeneratorExit:  # the task was dropped: its event loop was closed, as a rule
        abandon()
        raise


async def finished(call: Callable[[], _R]) -> _R:
    """Return the result of a call that is short, and done even if the task is cancelled."""
    if not in_event_loop():  # it was closed before the task had ended
        return call()
    try:
        future = _submit(_threads.releasing, Errand(), call)
    except RuntimeError:  # no thread is left: better the event loop waits than the lock is kept
        return call()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await _settled(future)
        raise


async def _settled(future: asyncio.Future[_R]) -> None:
    """Wait for the end of a call, whatever becomes of it, and however often we are cancelled."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:  # the caller raises the first one
            # anyio cancels again in each iteration of the event loop. The loop would hold the
            # interpreter, and the request of the thread would time out.
            time.sleep(0)
    future.exception()  # looked at


def _submit(
    threads: Threads,
    errand: Errand,
    call: Callable[[], _R],
    *,
    at_once: bool = False,
    above: bool = False,
) -> asyncio.Future[_R]:
    run = functools.partial(contextvars.copy_context().run, _run, errand, call)
    errand.future = future = threads.submit(run, at_once=at_once, above=above)
    return asyncio.wrap_future(future, loop=errand.loop)


def _run(errand: Errand, call: Callable[[], _R]) -> _R:
    _present.errand = errand
    try:
        errand.check()
        return call()
    finally:
        _present.errand = None


class Threads:
    """Threads that begin when they are needed, and end when they stand idle.

    Unlike those of `concurrent.futures`, they do not keep the process from
    ending: a waiter that ends with its process is passed, as any dead waiter.

    Args:
        name: of the threads.
        most: how many there may be. Further calls wait for their turn.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._mutex = threading.RLock()  # the garbage collector may release a lock at any time
        self._all = 0
        #: Those that wait for a call, less the calls that wait for one of them.
        self._free = 0

    def submit(
        self, call: Callable[[], _R], *, at_once: bool = False, above: bool = False
    ) -> concurrent.futures.Future[_R]:
        """Let a thread make a call.

        Args:
            call: the call.
            at_once: whether it may not wait for its turn.
            above: whether to begin a thread for it above the number that there may be.

        Raises:
            RuntimeError: no thread is free, and there are as many as there may be; or the system
                refuses to begin one. Unless `at_once`, only if there are no others.
        """
        future: concurrent.futures.Future[_R] = concurrent.futures.Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call()
            except BaseException as error:
                _deliver(functools.partial(future.set_exception, error))
            else:
                _deliver(functools.partial(future.set_result, result))

        with self._mutex:
            may_begin = self._free <= 0 and (above or self._all < self._most)
            if may_begin and self._begin(run):
                return future
            if at_once and self._free <= 0:
                raise RuntimeError("no thread is free")
            self._free -= 1
        self._calls.put(run)
        return future

    def _begin(self, call: Callable[[], None]) -> bool:
        """Begin one more thread. Return False if the system has none left, but others will do.

        Raises:
            RuntimeError: there are no others.
        """
        thread = threading.Thread(target=self._work, args=([call],), name=self._name, daemon=True)
        self._all += 1
        try:
            thread.start()
        except RuntimeError:
            self._all -= 1
            if not self._all:
                raise
            return False
        return True

    def _work(self, first: list[Callable[[], None]]) -> None:
        call: Callable[[], None] | None = first.pop()  # (a thread keeps its arguments)
        while True:
            if call is not None:
                call()
                call = None  # with all that it refers to
                with self._mutex:
                    if self._all > self._most:
                        self._all -= 1
                        return
                    self._free += 1
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._mutex:
                    if self._free <= 0:
                        continue  # a call is on its way
                    self._free -= 1
                    self._all -= 1
                return


def _deliver(outcome: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop was closed
        outcome()


class _Pools:
    """The threads of this process. A forked child has none."""

    def __init__(self) -> None:
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self.waiting = Threads("userlock-wait", _MOST_WAITING)
        self.releasing = Threads("userlock-release", _MOST_AT_ONCE)
        self.trying = Threads("userlock-try", _MOST_AT_ONCE)


_threads = _Pools()
