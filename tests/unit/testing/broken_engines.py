"""An engine in memory that keeps the contract, and engines that each break one rule of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from userlock.outbox.engines import EngineError, Wake
from userlock.testing import ManualClock


class GoodEngine:
    """Messages in memory, which are delivered when `run` is called. Time by hand."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.delivered: list[str] = []
        self.waiting: list[tuple[float, Wake]] = []
        self.names: set[str] = set()
        self.closed = False
        self.down = False
        self.pid = os.getpid()
        # What a child delivers reaches the test by this pipe.
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)

    def connect(self, deliver: Callable[[str], object]) -> None:
        pass

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        return [self.take(each, timeout) for each in messages]

    def take(self, message: Wake, timeout: float) -> EngineError | None:
        if self.closed or self.down or timeout <= 0:
            return EngineError("it does not answer")
        if message.name not in self.names:
            self.names.add(message.name)
            self.accept(message)
        return None

    def accept(self, message: Wake) -> None:
        if os.getpid() != self.pid:
            os.write(self.writing, message.key.encode() + b"\n")
        self.waiting.append((self.clock.now() + message.delay, message))

    def run(self) -> None:
        for each in list(self.waiting):
            if each[0] <= self.clock.now():
                self.waiting.remove(each)
                self.deliver(each[1])

    def deliver(self, message: Wake) -> None:
        self.delivered.append(message.key)

    def keys(self) -> list[str]:
        try:
            of_children = os.read(self.reading, 65536).decode().split()
        except BlockingIOError:
            of_children = []
        self.delivered += of_children
        return self.delivered

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.down = True
        yield
        self.down = False

    def close(self) -> None:
        self.closed = True


class HasNoClose(GoodEngine):
    close = None  # type: ignore[assignment]


class LosesSome(GoodEngine):
    def accept(self, message: Wake) -> None:
        if len(self.names) % 7 != 3:
            super().accept(message)


class TakesTen(GoodEngine):
    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        return super().wake(messages[:10], timeout) + [None] * len(messages[10:])


class NeedsOne(GoodEngine):
    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        if not messages:
            raise IndexError("no messages")
        return super().wake(messages, timeout)


class AddsTheName(GoodEngine):
    def deliver(self, message: Wake) -> None:
        self.delivered += [message.key, f"{message.key} {message.name}"]


class CutsKeys(GoodEngine):
    def deliver(self, message: Wake) -> None:
        self.delivered.append(message.key[:255])


class NamesAreKeys(GoodEngine):
    """It takes a second attempt for the first one."""

    def take(self, message: Wake, timeout: float) -> EngineError | None:
        return super().take(message._replace(name=message.key), timeout)


class RefusesKnownNames(GoodEngine):
    def take(self, message: Wake, timeout: float) -> EngineError | None:
        if message.name in self.names:
            return EngineError("ALREADY_EXISTS")
        return super().take(message, timeout)


class ForgetsNames(GoodEngine):
    def accept(self, message: Wake) -> None:
        super().accept(message)
        self.names.clear()


class IgnoresDelays(GoodEngine):
    def accept(self, message: Wake) -> None:
        super().accept(message._replace(delay=0))


class DelaysInMilliseconds(GoodEngine):
    def accept(self, message: Wake) -> None:
        super().accept(message._replace(delay=message.delay / 1000))


class DelaysForEver(GoodEngine):
    def accept(self, message: Wake) -> None:
        super().accept(message._replace(delay=message.delay * 1e6))


class RaisesWithoutTime(GoodEngine):
    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        if timeout <= 0:
            raise ValueError("Timeout value out of range")
        return super().wake(messages, timeout)


class RaisesWhenStopped(GoodEngine):
    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        if self.down:
            raise ConnectionRefusedError
        return super().wake(messages, timeout)


class TakesItsTime(GoodEngine):
    """A time-out for each message, not for all."""

    def take(self, message: Wake, timeout: float) -> EngineError | None:
        if self.down:
            self.clock.advance(timeout)
        return super().take(message, timeout)


class SaysYesWhenStopped(GoodEngine):
    def take(self, message: Wake, timeout: float) -> EngineError | None:
        return super().take(message, timeout) and None


class StaysDown(GoodEngine):
    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.down = True
        yield


class OneThread(GoodEngine):
    """Lets one thread in, ever."""

    thread = 0

    def take(self, message: Wake, timeout: float) -> EngineError | None:
        self.thread = self.thread or threading.get_ident()
        if self.thread != threading.get_ident():
            raise RuntimeError("used in another thread")
        return super().take(message, timeout)


class ClosesOnce(GoodEngine):
    def close(self) -> None:
        if self.closed:
            raise ValueError("closed")
        super().close()


class RaisesAfterClose(GoodEngine):
    def take(self, message: Wake, timeout: float) -> EngineError | None:
        if self.closed:
            raise ValueError("Cannot invoke RPC on closed channel!")
        return super().take(message, timeout)


class LosesAfterClose(GoodEngine):
    def take(self, message: Wake, timeout: float) -> EngineError | None:
        return None if self.closed else super().take(message, timeout)


class FailsInChildren(GoodEngine):
    def take(self, message: Wake, timeout: float) -> EngineError | None:
        if os.getpid() != self.pid:
            return EngineError("a connection of the parent's")
        return super().take(message, timeout)


class RaisesInChildren(GoodEngine):
    def take(self, message: Wake, timeout: float) -> EngineError | None:
        if os.getpid() != self.pid:
            os.close(2)  # its traceback
            raise RuntimeError("a connection of the parent's")
        return super().take(message, timeout)


class LosesThoseOfChildren(GoodEngine):
    def accept(self, message: Wake) -> None:
        if os.getpid() == self.pid:
            super().accept(message)
