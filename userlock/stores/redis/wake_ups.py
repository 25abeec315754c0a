"""Wake-ups through Redis: one subscription for all waiters of a process.

A release publishes the token of the next waiter, in the same script, on the
channel of that waiter's process:

    A (another process)         Redis                       B, and C (waiters here)
                                                            subscribe, once per process
    append =A, publish B's ───▶ the channel of B's process
                                ──────────────────────────▶ B listens for all: goes on at once
                                                            C listens now

No thread stands apart for it. One of the waiting threads or tasks listens, and
rings the bells of the others; when it has its lock, another one listens. The
subscription stays. While none is to be had, waiters poll. A cluster passes messages
on between its nodes, so any of them will do.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from userlock.clock import SYSTEM_CLOCK
from userlock.fork import reset_in_child
from userlock.lock.lease import process_of
from userlock.lock.store import Stored, StoreUnavailable, WakeUps
from userlock.signals import raise_interrupt
from userlock.stores.redis.connections import TROUBLE, Connection, packed
from userlock.stores.stream import poll_of
from userlock.waits import Bell

#: Pause before the next subscription after one that failed, in seconds.
_RETRY_SECONDS = 1.0
#: The shortest time from one subscription that told nothing to the next, in seconds.
_RENEW_SECONDS = 10.0
#: After so long without a word from the server it is asked for one, and has so long to answer.
_QUIET_SECONDS = 5.0
_ANSWER_SECONDS = 1.0


class _Line:
    """One subscription, and a pair of sockets that interrupts the thread that listens to it."""

    def __init__(self, connection: Connection, now: float) -> None:
        self.connection = connection
        #: Held by the one that listens, whose bell that is; for good when the connection is closed.
        self.listening = threading.Lock()
        self.listener: Bell | None = None
        self.heard_at = now
        self.asked_at: float | None = None
        self.ended = False
        self._interrupts, self._interrupt = socket.socketpair()
        for each in (self._interrupts, self._interrupt):
            weakref.finalize(self, each.close)
            each.setblocking(False)
        self._wait_to_read = poll_of(connection.fileno(), self._interrupts)

    async def wait(self, bell: Bell, seconds: float) -> bool:
        """Wait for a message, for that long, or until the bell is stirred; return whether it came.

        (A task's bell ends the wait by itself.)
        """
        if bell.loop is None:
            self._wait_to_read(seconds * 1000)
        else:
            await bell.sleep_or_read(self.connection.fileno(), seconds)
        if self.connection.stale(0):
            return True
        with contextlib.suppress(BlockingIOError):
            self._interrupts.recv(4096)
        return False

    def end(self) -> None:
        """End the subscription. If somebody listens, the connection is closed by whoever that is.

        As long as a thread or an event loop watches its file number, it must not be another's.
        """
        self.ended = True
        if self.listening.acquire(blocking=False):
            self.connection.close()
            return
        listener = self.listener
        if listener is not None:
            listener.stir()

    def leave(self) -> None:
        self.listener = None
        self.listening.release()
        if self.ended:
            self.end()

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):  # interrupted often enough already, or closed at exit
            self._interrupt.send(b"!")


class RedisWakeUps(WakeUps):
    """The wake-ups of this process. Survives fork.

    Args:
        connect: returns a new connection, which is in no pool; may raise as the pool does.
        channel: begins the names of channels.
        stored: returns a record from its time to live in milliseconds, and its value.
        now: the time.
    """

    def __init__(
        self,
        connect: Callable[[], Coroutine[Any, Any, Connection]],
        channel: bytes,
        stored: Callable[[bytes], Stored | None],
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        super().__init__()
        self._connect = connect
        self._channel = channel
        self._stored = stored
        self._now = now
        self._line: _Line | None = None
        self._start_again()
        reset_in_child(self._start_again)

    def _start_again(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.connection.close()
        self._bells: dict[bytes, Bell] = {}
        self._subscribing = threading.Lock()
        self._retry_at = 0.0
        self._renew_at = 0.0

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.end()

    @property
    def come(self) -> bool:
        return self._line is not None and super().come

    def missed(self) -> None:
        """Note a missed wake-up; after some, subscribe anew: it may be the primary no more."""
        super().missed()
        if not super().come and self._now() >= self._renew_at:
            self._renew_at = self._now() + _RENEW_SECONDS
            line = self._line
            if line is not None:
                self._lose(line)

    async def begin(self, lock_id: str, token: str, bell: Bell) -> None:
        name = token.encode()
        self._bells[name] = bell
        if self._line is None and self._now() >= self._retry_at:
            await self._subscribe(self._channel + process_of(name))

    async def _subscribe(self, channel: bytes) -> None:
        """Subscribe, unless another waiter does just now."""
        if not self._subscribing.acquire(blocking=False):
            return
        try:
            self._retry_at = self._now() + _RETRY_SECONDS
            connection = await self._connect()
            try:
                connection.begin()
                await connection.call(b"SUBSCRIBE", channel)
            except BaseException:
                connection.close()
                raise
            self._line = _Line(connection, self._now())
        except (StoreUnavailable, *TROUBLE) as error:
            raise_interrupt(error)
            # Waiters poll; trouble with the server shows there.
        finally:
            self._subscribing.release()

    def end(self, token: str) -> None:
        self._bells.pop(token.encode(), None)
        line = self._line
        if self._bells and line is not None and not line.listening.locked():
            with contextlib.suppress(StopIteration, RuntimeError):  # others come and go
                next(iter(self._bells.values())).stir()  # it may listen now

    async def await_(self, bell: Bell, seconds: float) -> None:
        """Wait, listening if nobody else does, until the bell rings, or for that long."""
        ends = self._now() + seconds
        while not bell.rung and (left := ends - self._now()) > 0:
            line = self._line
            if line is None or not line.listening.acquire(blocking=False):
                await bell.sleep(left)
                continue
            try:
                line.listener, bell.disturb = bell, line.interrupt
                if not bell.rung:
                    await self._listen(line, bell, left)
            except TROUBLE as error:
                self._lose(line)
                raise_interrupt(error)
            finally:
                bell.disturb = None
                line.leave()

    async def _listen(self, line: _Line, bell: Bell, seconds: float) -> None:
        """Ring the bell that the server names; return after one message, or soon."""
        if line.ended:
            raise ConnectionError("the subscription has ended")
        if not line.connection.buffered:
            await self._check(line)
            if not await line.wait(bell, min(seconds, _ANSWER_SECONDS)):
                return
        line.connection.begin()
        match await line.connection.reply():
            case [b"message", _, bytes(message)]:
                token, _, rest = message.partition(b" ")
                named = self._bells.get(token)
                if named is bell:
                    bell.disturb = None  # it is awake
                if named is not None:
                    self.woken(named, self._stored(rest) if rest else None)
        line.heard_at, line.asked_at = self._now(), None

    async def _check(self, line: _Line) -> None:
        """Find out whether a quiet server is still there."""
        now = self._now()
        if line.asked_at is None and now - line.heard_at > _QUIET_SECONDS:
            line.asked_at = now
            line.connection.begin()
            await line.connection.send(packed([b"PING"]))
        elif line.asked_at is not None and now - line.asked_at > _ANSWER_SECONDS:
            raise ConnectionError("the server is silent")

    def _lose(self, line: _Line) -> None:
        if self._line is line:
            self._line = None
            self._retry_at = self._now() + _RETRY_SECONDS
        line.end()
