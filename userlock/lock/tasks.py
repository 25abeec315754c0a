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

Releases have threads of their own: waiters that occupied all of them would wait
for a holder that cannot release.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from userlock.bell import Bell
from userlock.fork import reset_in_child

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Tasks of a process that wait at once, and that release at once. More of them take turns.
_MOST_WAITING = 1000
_MOST_RELEASING = 8
#: A thread that has stood idle for so long ends.
_IDLE_SECONDS = 10.0


class WaitCancelled(BaseException):
    """The task on whose behalf a thread waits was cancelled. It never leaves this package."""


class Errand:
    """One call in a thread on behalf of a task.

    Attributes:
        owner: the thread and the task, as `running_code` returns them.
        loop: the task's event loop.
        future: the call's, as soon as it is submitted.
    """

    def __init__(self, owner: tuple[int, int], loop: asyncio.AbstractEventLoop) -> None:
        self.owner = owner
        self.loop = loop
        self.future: concurrent.futures.Future[Any] | None = None
        self._bell: Bell | None = None
        self._cancelled = False

    def cancel(self) -> bool:
        """Make a wait end. Return whether it had not begun, and never will."""
        self._cancelled = True
        if self.future is not None and self.future.cancel():
            return True
        bell = self._bell
        if bell is not None:
            bell.ring()
        return False

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


async def waited(call: Callable[[], _R], undo: Callable[[_R], object]) -> _R:
    """Return the result of a call that may wait for a lock.

    Args:
        call: the call.
        undo: is called with its result if nobody takes it: the task was cancelled meanwhile, or
            its event loop was closed.
    """
    errand = Errand(running_code(), asyncio.get_running_loop())

    def call_or_undo() -> _R:
        result = call()
        if errand.loop.is_closed():
            undo(result)
        return result

    future = _submit(_threads.waiting, errand, call_or_undo)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if errand.cancel():
            raise
        await _settled(future)
        if future.exception() is None:
            with contextlib.suppress(Exception):
                await finished(functools.partial(undo, future.result()))
        raise


async def finished(call: Callable[[], _R]) -> _R:
    """Return the result of a call that is short, and done even if the task is cancelled."""
    errand = Errand(running_code(), asyncio.get_running_loop())
    try:
        future = _submit(_threads.releasing, errand, call)
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
        except asyncio.CancelledError:
            continue  # the caller raises the first one
    future.exception()  # looked at


def _submit(threads: Threads, errand: Errand, call: Callable[[], _R]) -> asyncio.Future[_R]:
    run = functools.partial(contextvars.copy_context().run, _run, errand, call)
    errand.future = future = threads.submit(run)
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
        most: how many there may be; further calls wait for their turn.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._all = 0
        #: Those that wait for a call, less the calls that wait for one of them.
        self._free = 0

    def submit(self, call: Callable[[], _R]) -> concurrent.futures.Future[_R]:
        """Let a thread make a call."""
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
            if self._free > 0 or self._all >= self._most or not self._begin():
                self._free -= 1
        self._calls.put(run)
        return future

    def _begin(self) -> bool:
        """Begin one more thread. Return False if the system has none left, but others will do.

        Raises:
            RuntimeError: there are no others.
        """
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            if not self._all:
                raise
            return False
        self._all += 1
        return True

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._mutex:
                    if self._free <= 0:
                        continue  # a call is on its way
                    self._free -= 1
                    self._all -= 1
                return
            call()
            del call  # with all that it refers to
            with self._mutex:
                self._free += 1


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
        self.releasing = Threads("userlock-release", _MOST_RELEASING)


_threads = _Pools()
