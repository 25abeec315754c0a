"""The two places where this library waits: a socket, and a bell or a time.

Everything that waits is written once, as coroutines. A thread runs one to its end by `run`: it
blocks wherever it waits, so nothing is ever suspended. An asyncio task awaits it while its event
loop goes on: no thread waits on behalf of a task.

A cancellation is raised at one of the two places, as a signal handler's exception is in a thread.
Code that has to reach its end in spite of it runs in `finish`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar

from userlock.clock import Clock, SystemClock

_P = ParamSpec("_P")
_R = TypeVar("_R")

running_loop = asyncio._get_running_loop


class _Blocking(threading.local):
    """A mark of a thread inside of `run`: it blocks although an event loop may run in it.

    It owns a mutex of its own then: there is no line at which an exception leaves that locked.
    """

    def __init__(self) -> None:
        self.section = threading.RLock()
        self.now: Callable[[], bool] = self.section._is_owned  # type: ignore[attr-defined]


blocking = _Blocking()


def run(function: Callable[_P, Coroutine[Any, Any, _R]], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function that may wait, and block this thread where it waits."""
    try:
        # (One expression: an interrupt finds no coroutine that was never begun. One line: as in
        # `locked`.)
        with blocking.section: function(*args, **kwargs).send(None)  # fmt: skip  # noqa: E701
    except StopIteration as done:
        result: _R = done.value
        return result
    raise AssertionError("a thread that blocks was suspended")


def locked(
    mutex: AbstractContextManager[object],
    function: Callable[_P, _R],
    *args: _P.args,
    **kwargs: _P.kwargs,
) -> _R:
    """Call a function with a mutex.

    On one line: there is none between the end of the call and that of the `with`, at which a trace
    function could raise and leave the mutex locked.
    """
    with mutex: return function(*args, **kwargs)  # fmt: skip  # noqa: E701


def with_mutex(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[Any, _P], _R]:
    """Return a method that is called with the `_mutex` of its object; see `locked`."""

    @functools.wraps(method)
    def called(self: Any, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._mutex: return method(self, *args, **kwargs)  # fmt: skip  # noqa: E701

    return called


def task_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop of the running task; None for code that blocks its thread."""
    return None if blocking.now() else running_loop()


def in_event_loop() -> bool:
    """Return whether an asyncio event loop runs in this thread: to block would stop it."""
    return running_loop() is not None


def blocks_event_loop() -> bool:
    """Return whether to wait here would block an event loop."""
    return blocking.now() and running_loop() is not None


def running_code() -> tuple[int, int]:
    """Return the running thread, and the asyncio task if there is one.

    Several may share a scope (`asyncio.to_thread` and new tasks copy context variables). Each
    enters a lock on its own account.
    """
    loop = running_loop()
    return threading.get_ident(), 0 if loop is None else id(asyncio.current_task(loop))


# --- what has to reach its end ----------------------------------------------------------------


class _Finishing:
    """A section that cancellations do not end: each is kept until it is over."""

    cancelled: asyncio.CancelledError | None = None


#: The running section: weak, so that none outlives its code whatever was raised there.
_finishing: contextvars.ContextVar[Callable[[], _Finishing | None]] = contextvars.ContextVar(
    "userlock_finishing", default=lambda: None
)


async def finish(
    function: Callable[_P, Coroutine[Any, Any, _R]], *args: _P.args, **kwargs: _P.kwargs
) -> _R:
    """Call a function that may wait, and reach its end even if the task is cancelled meanwhile.

    The cancellation is raised afterwards.
    """
    if isinstance(sys.exception(), GeneratorExit):  # the task was dropped: it cannot be suspended
        return run(function, *args, **kwargs)
    section, around = _Finishing(), _finishing.get()
    try:
        _finishing.set(weakref.ref(section))
        result = await function(*args, **kwargs)
    finally:
        _finishing.set(around)
    if section.cancelled is not None:
        outer = around()
        if outer is None:
            raise section.cancelled
        outer.cancelled = section.cancelled
    return result


async def _until_done(
    loop: asyncio.AbstractEventLoop,
    begin: Callable[[asyncio.Future[bool]], object],
    end: Callable[[], object],
    seconds: float,
) -> bool:
    """Wait for a future that somebody else sets; return whether that was done in time."""
    future: asyncio.Future[bool] = loop.create_future()
    # A loop that is late sees the event first, and then that the time is over.
    timer = loop.call_later(seconds, _set, future, False)
    try:
        begin(future)
        section = _finishing.get()()
        if section is None:
            return await future
        while True:
            try:
                # Shielded: anyio cancels in each iteration of the loop, before the event is seen.
                return await asyncio.shield(future)
            except asyncio.CancelledError as error:
                section.cancelled = section.cancelled or error
    finally:
        timer.cancel()
        end()


def _set(future: asyncio.Future[bool], done: bool = True) -> None:
    if not future.done():
        future.set_result(done)


# --- a socket ---------------------------------------------------------------------------------


async def ready(
    loop: asyncio.AbstractEventLoop, number: int, seconds: float, *, to_write: bool = False
) -> None:
    """Wait in a task until a socket can be read, or written; else raise `TimeoutError`.

    A task that is cancelled waits for its reply all the same. What it does to leave nothing behind
    would otherwise overtake its command, at a server that is busy.
    """
    add, remove = loop.add_reader, loop.remove_reader
    if to_write:
        add, remove = loop.add_writer, loop.remove_writer
    wait = functools.partial(
        _until_done, loop, lambda future: add(number, _set, future), lambda: remove(number)
    )
    ends = loop.time() + seconds
    try:
        in_time = seconds > 0 and await wait(seconds)
    except asyncio.CancelledError:
        if not to_write:
            await finish(wait, ends - loop.time())
        raise
    if not in_time:
        raise TimeoutError("timed out")


# --- a bell, or a time ------------------------------------------------------------------------


class Bell:
    """The bell of one waiting thread or task. Others ring it, from any thread.

    Attributes:
        loop: the event loop of a task; None for a thread.
        rung: whether there is news for the waiter; it sets this back.
        woken: whether the news came from the store.
        news: what the store said, if it did; otherwise the record has to be read.
        listen: waits for the bell in a thread, in a way of the store's own.
        disturb: called when the bell rings, for a thread that sleeps elsewhere.
    """

    __slots__ = (
        *("_future", "_latch", "_stirred"),
        *("disturb", "listen", "loop", "news", "rung", "woken"),
    )

    def __init__(self) -> None:
        self.loop = task_loop()
        #: Of a thread: locked, until somebody stirs it. (An event is twenty calls for each wait.)
        self._latch = threading.Lock() if self.loop is None else None
        if self._latch is not None:
            self._latch.acquire()
        #: Weak: others keep the bell, and must not keep a task whose loop is gone.
        self._future: weakref.ref[asyncio.Future[bool]] | None = None
        self._stirred = False
        self.rung = False
        self.woken = False
        self.news: object = None
        self.listen: Callable[[Bell, float], None] | None = None
        self.disturb: Callable[[], object] | None = None

    def ring(self, *, woken: bool = False, news: object = None) -> None:
        """Wake the waiter, now or as soon as it waits."""
        if woken:
            self.news, self.woken = news, True
        self.rung = True
        self.stir()

    def stir(self) -> None:
        """Let the waiter look around, without news."""
        if self._latch is not None:
            with contextlib.suppress(RuntimeError):  # it is open already
                self._latch.release()
            disturb = self.disturb
            if disturb is not None:
                disturb()
            return
        self._stirred = True
        loop = self.loop
        if loop is running_loop():
            self._wake()
        elif loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks with it
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        future = None if self._future is None else self._future()
        if future is not None:
            _set(future)

    def wait(self, seconds: float) -> None:
        """Block the thread until the bell rings, or for that long."""
        if self.rung:
            return
        if self.listen is None:
            self.block(seconds)
        else:
            self.listen(self, seconds)

    def block(self, seconds: float) -> None:
        """Block the thread until somebody stirs it, or for that long."""
        assert self._latch is not None, "a task awaits its bell"
        self._latch.acquire(timeout=max(seconds, 0.0))

    async def sleep(self, seconds: float) -> None:
        """Wait, in a task or a thread, until somebody stirs it, or for that long."""
        if self.loop is None:
            self.block(seconds)
            return
        if not (self.rung or self._stirred):
            await _until_done(self.loop, self._await, self._forget, seconds)
        self._stirred = False

    async def sleep_or_read(self, number: int, seconds: float) -> None:
        """Wait in a task as `sleep` does, or until a socket can be read."""
        loop = self.loop
        assert loop is not None

        def begin(future: asyncio.Future[bool]) -> None:
            self._await(future)
            loop.add_reader(number, _set, future)

        def end() -> None:
            self._forget()
            loop.remove_reader(number)

        if not (self.rung or self._stirred):
            await _until_done(loop, begin, end, seconds)
        self._stirred = False

    def _await(self, future: asyncio.Future[bool]) -> None:
        self._future = weakref.ref(future)
        if self._stirred:  # by another thread, just now
            _set(future)

    def _forget(self) -> None:
        self._future = None

    def answer(self) -> tuple[bool, object]:
        """Set the bell back; return whether the store has woken the waiter, and its news."""
        woken, news = self.woken, self.news
        self.woken, self.rung, self.news = False, False, None
        return woken, news


async def pause(clock: Clock, seconds: float) -> None:
    """Wait for that long: a thread by the clock, a task by its event loop."""
    task = task_loop() is not None
    if not (task and isinstance(clock, SystemClock)):  # a test moves others by hand
        clock.sleep(seconds)
        seconds = 0.0
    if task:
        await Bell().sleep(seconds)


def begun_in_thread(
    function: Callable[[], _R], name: str, *, daemon: bool = True, or_here: bool = False
) -> concurrent.futures.Future[_R]:
    """Begin a call in a new thread, with the context variables of this one.

    `or_here`: it is made here and now where no thread can begin (there are too many, or the
    interpreter is ending), because a late event loop is better than one that never goes on.
    Otherwise that is a `RuntimeError`.
    """
    done: concurrent.futures.Future[_R] = concurrent.futures.Future()

    def work() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    context = contextvars.copy_context()
    try:
        threading.Thread(target=context.run, args=(work,), name=name, daemon=daemon).start()
    except RuntimeError:
        if not or_here:
            raise
        work()
    return done


async def result_of(future: Any, seconds: float = threading.TIMEOUT_MAX) -> Any:
    """Wait in a task for a future that another thread sets; `TimeoutError` after that long."""
    bell = Bell()
    future.add_done_callback(lambda _: bell.ring())
    await bell.sleep(seconds)
    try:
        if not future.done():
            raise TimeoutError(f"no result within {seconds:g} s")
        return future.result()
    finally:
        del future  # it keeps its error, whose frames would keep it


async def in_thread(function: Callable[[], _R]) -> _R:
    """Call a function of others that blocks; for a task in a thread of its own.

    In none of asyncio's: they are few, and the app's, whose work there may wait for this task.
    """
    if task_loop() is None:
        return function()
    begun = begun_in_thread(function, "userlock-writes", daemon=False, or_here=True)
    result: _R = await result_of(begun)
    return result
