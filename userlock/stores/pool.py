"""The connections of a process to one server.

A process has about as many as it has callers that use locks at one moment, and never more than a
bound: a caller that needs one more waits for its turn, as long as there are turns. They go in
order. If connections were put back where anybody finds them, running threads would take them again
before the waiting ones wake.

If the server fails one caller, the waiting ones fail at once: one after another, each would wait
for the server as long as the first did.

A thread makes the connection that it needs. Names, certificates, passwords and Sentinels are looked
up by code that blocks, so for a task a thread makes one, and puts it here if the task has gone.
"""

from __future__ import annotations

import abc
import concurrent.futures
import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, TypeVarTuple

from userlock.fork import reset_in_child
from userlock.lock.store import NoConnection, StoreUnavailable, waiting_attempt
from userlock.signals import raise_interrupt
from userlock.stores.stream import Place, Stream
from userlock.waits import Bell, begun_in_thread, locked, result_of, run, task_loop

#: For finding and connecting to a server, and for its reply, in seconds.
CONNECT_TIMEOUT = 0.1
REPLY_TIMEOUT = 0.3
#: For a reply when the server has just been slow, in seconds. A hanging server costs one request
#: this and `REPLY_TIMEOUT` before the breaker opens.
HURRY_TIMEOUT = 0.1
#: Python's and the kernel's errors for a reply that did not come in time.
SLOW = (TimeoutError, BlockingIOError)
#: For a thread that makes a connection for a task; its own time-outs end it before, as a rule.
_MOST_CONNECTING = 10.0
#: How long a caller waits at the most while all connections are in use, in seconds. Those that give
#: up would ask again, and make a crowd slower.
PATIENCE = 10.0

_T = TypeVar("_T")
_C = TypeVar("_C", bound=Stream)
_Args = TypeVarTuple("_Args")
_Answer = TypeVar("_Answer")
#: Sends commands on a connection, and reads all their replies.
Exchange = Callable[[_C, *_Args], Coroutine[Any, Any, _Answer]]


class NotHere(StoreUnavailable):
    """A connection cannot carry an exchange out. Nothing was done: a new one has to be asked."""


class _Waiter(Generic[_T]):
    """A caller that waits for its turn, and what it was given; words: why there is nothing."""

    __slots__ = ("bell", "given")

    def __init__(self) -> None:
        self.bell = Bell()
        self.given: _T | Place | str | None = None

    def serve(self, given: _T | Place | str) -> None:
        self.given = given
        self.bell.ring()


class Turns(Generic[_T]):
    """At most so many callers at a time; more wait for their turn. Thread-safe.

    A place is free again when nothing refers to it any more: none is lost when
    an interrupt makes a thread drop it. A forked child starts with none taken.
    """

    def __init__(self, most: int = 32) -> None:
        self.idle: list[_T] = []  # what callers have given back; the latest last
        self._most = most
        self._begin()
        reset_in_child(self._begin)

    def _begin(self) -> None:
        self.idle.clear()
        self._taken: set[weakref.ref[Place]] = set()
        self._mutex = threading.RLock()  # the garbage collector may drop a task at any time
        self._waiters: dict[_Waiter[_T], None] = {}

    def give_back(self, used: _T) -> None:
        self.idle.append(used)
        self._hand_on()

    async def take(self) -> _T | Place:
        """Return what another caller has given back, or a new place."""
        waiter = _Waiter[_T]()
        try:
            locked(self._mutex, self._queue, waiter)
            attempt = waiting_attempt.get()()
            await waiter.bell.sleep(PATIENCE if attempt is None else min(PATIENCE, attempt.left))
        except BaseException:
            locked(self._mutex, self._waiters.pop, waiter, None)
            if isinstance(waiter.given, Place):
                self._taken.discard(weakref.ref(waiter.given))
                self._hand_on()
            elif not (waiter.given is None or isinstance(waiter.given, str)):
                self.give_back(waiter.given)
            raise
        locked(self._mutex, self._waiters.pop, waiter, None)
        if waiter.given is None:
            raise NoConnection(f"all {self._most} connections are in use")
        if isinstance(waiter.given, str):  # the server failed another caller meanwhile
            raise StoreUnavailable(waiter.given, sent=False)
        return waiter.given

    def refuse(self, reason: str) -> None:
        """Fail the waiting callers: the server does not answer."""
        for waiter in tuple(self._waiters):
            if locked(self._mutex, self._waiters.pop, waiter, self) is None:
                waiter.serve(reason)

    def _hand_on(self) -> None:
        """Serve the first waiter after a place was given back."""
        if self._waiters:
            locked(self._mutex, self._serve)

    def _queue(self, waiter: _Waiter[_T]) -> None:
        self._waiters[waiter] = None
        self._serve()

    def _serve(self) -> None:
        while self._waiters:
            try:
                given: _T | Place = self.idle.pop()
            except IndexError:
                for place in tuple(self._taken):  # other threads take places out meanwhile
                    if place() is None:
                        self._taken.discard(place)
                if len(self._taken) >= self._most:
                    return
                given = Place()
                self._taken.add(weakref.ref(given))
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            waiter.serve(given)


class Pool(Turns[_C], abc.ABC):
    """At most so many connections to one server. Thread-safe; a forked child starts with none."""

    #: The errors whose cause is the server, or the way there; those when a connection has ended.
    trouble: tuple[type[BaseException], ...]
    breaks: tuple[type[BaseException], ...]

    def __init__(self, *, most: int = 32) -> None:
        super().__init__(most)
        # A store that is dropped leaves no open sockets behind.
        weakref.finalize(self, _close_all, self.idle)

    def _begin(self) -> None:
        _close_all(self.idle)  # the parent's; which sends nothing
        super()._begin()

    @abc.abstractmethod
    def connect(self, timeout: float | None) -> Coroutine[Any, Any, _C]:
        """Return a new connection, in a thread; `timeout`: another one for replies than usual."""

    @abc.abstractmethod
    def unavailable(self, error: BaseException, *, sent: bool) -> StoreUnavailable:
        """Return the lock service's error for one of `trouble`."""

    async def exchange(
        self, checked: bool, exchange: Exchange[_C, *_Args, _Answer], *args: *_Args
    ) -> _Answer:
        """Return the result of an exchange with these arguments.

        After any error, `KeyboardInterrupt` included, the connection is closed: a reply may still
        be on its way, and would be taken for the next command's. Trouble with the server is raised
        as `StoreUnavailable`. `checked`: the connection must not have ended while it was idle; a
        system call that is saved where the outcome is read back after a break anyway.
        """
        connection = None
        try:
            try:
                connection = self.idle.pop()  # atomic; the latest used is the likeliest alive
            except IndexError:
                connection = await self.make(or_idle=True)
            else:
                if checked and connection.stale(0):
                    stale, connection = connection, None  # nothing was sent yet
                    self.close(stale)
                    self.drop_idle()
                    connection = await self.make()
            connection.begin()
            answer = await exchange(connection, *args)
        except BaseException as error:
            self._failed(connection, error)
            if not isinstance(error, NotHere):
                raise
            self.drop_idle()  # neither could they
            return await self.ask_apart(exchange, None, *args)
        self.idle.append(connection)
        if self._waiters:
            self._hand_on()
        return answer

    async def ask_to_read(
        self, hurry: bool, exchange: Exchange[_C, *_Args, _Answer], *args: *_Args
    ) -> _Answer:
        """Return the result of an exchange that changes nothing: it is repeated after a break.

        `hurry`: ask once, on a new connection, with `HURRY_TIMEOUT` for a reply.
        """
        if hurry:
            return await self.ask_apart(exchange, HURRY_TIMEOUT, *args)
        try:
            return await self.exchange(False, exchange, *args)
        except StoreUnavailable as trouble:
            cause = trouble.__cause__
            if not trouble.sent or not isinstance(cause, self.breaks) or isinstance(cause, SLOW):
                raise
        try:
            return await self.exchange(True, exchange, *args)
        except StoreUnavailable as later:
            later.sent = True  # the first one was
            raise

    async def ask_apart(
        self, exchange: Exchange[_C, *_Args, _Answer], timeout: float | None, *args: *_Args
    ) -> _Answer:
        """Return the result of an exchange on a new connection, which is closed afterwards."""
        connection = None
        try:
            connection = await self.make(timeout)
            connection.begin()
            answer = await exchange(connection, *args)
        except BaseException as error:
            self._failed(connection, error)
            raise
        self.close(connection)
        return answer

    def block_apart(self, exchange: Callable[[_C], _Answer]) -> _Answer:
        """As `ask_apart`, in a thread, for an exchange that blocks it."""

        async def blocking(connection: _C) -> _Answer:
            return exchange(connection)

        return run(self.ask_apart, blocking, None)

    def _failed(self, connection: _C | None, error: BaseException) -> None:
        """Close the connection of an exchange that failed; raise `StoreUnavailable` for trouble.

        The error of a signal handler is none, whatever its class.
        """
        trouble = None
        try:
            if isinstance(error, self.trouble):
                raise_interrupt(error)
                trouble = self.unavailable(error, sent=connection is not None)
                if connection is None or trouble.slow:
                    self.refuse(trouble.reason)
        finally:
            if connection is not None:
                self.close(connection)
        if trouble is not None:
            if not trouble.serves_others:
                self.drop_idle()  # likely broken too
            raise trouble from error

    async def make(self, timeout: float | None = None, *, or_idle: bool = False) -> _C:
        """Return a new connection; `or_idle`: or one that another caller gives back.

        Where there may be no more, an idle one is closed for it.
        """
        given = await self.take()
        if isinstance(given, Place):
            return await self._connected(given, timeout)
        if or_idle:
            return given
        place = given.place
        assert place is not None, "a closed connection was kept"
        given.close()
        return await self._connected(place, timeout)

    async def _connected(self, place: Place, timeout: float | None = None) -> _C:
        """Make a connection in a place: here, or for a task in a thread."""
        if task_loop() is None:
            return self._made(place, timeout)
        make = functools.partial(self._made, place, timeout)
        made = begun_in_thread(make, "userlock-connect", or_here=True)
        try:
            connection: _C = await result_of(made, _MOST_CONNECTING)
            return connection
        except BaseException:  # the task has gone: the pool gets the connection
            made.add_done_callback(functools.partial(self._keep, timeout))
            raise
        finally:
            del made  # as in `result_of`

    def _made(self, place: Place, timeout: float | None) -> _C:
        try:
            connection = run(self.connect, timeout)
        except BaseException:
            # A kept error keeps its frames, and the place with them.
            self._taken.discard(weakref.ref(place))
            self._hand_on()
            raise
        connection.place = place
        return connection

    def _keep(self, timeout: float | None, made: concurrent.futures.Future[_C]) -> None:
        if made.exception() is not None:
            return
        connection = made.result()
        if timeout is None and weakref.ref(connection.place) in self._taken:
            self.give_back(connection)
        else:
            self.close(connection)

    def close(self, connection: _C) -> None:
        connection.close()
        connection.place = None
        self._hand_on()

    def drop_idle(self) -> None:
        _close_all(self.idle)
        self._hand_on()


def _close_all(idle: list[_C]) -> None:
    with contextlib.suppress(IndexError):  # another thread may take the last one
        while True:
            connection = idle.pop()
            connection.close()
            connection.place = None
