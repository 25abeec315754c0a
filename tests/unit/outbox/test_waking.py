"""Test the counts of a waker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from userlock.outbox import EngineError, Wake
from userlock.outbox.waking import Due, Waker
from userlock.testing import ManualClock


class _Key:
    """Stands for a row's key."""

    def urlsafe(self) -> bytes:
        return b"key"


class _Refuser:
    """An engine that takes nothing."""

    def connect(self, deliver: Callable[[str], object]) -> None:
        pass

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        return [EngineError("no")] * len(messages)

    def close(self) -> None:
        pass


class _Slow(Waker):
    """One whose count, once it is read, is written after another thread had its chance to.

    Attributes:
        other: called at the first read.
    """

    other: Callable[[], object] = staticmethod(lambda: None)
    _value = 0

    @property
    def failed(self) -> int:
        found, other = self._value, self.other
        self.other = lambda: None
        other()
        return found

    @failed.setter
    def failed(self, value: int) -> None:
        self._value = value


def failures_of_two(waker: _Slow) -> int:
    """Fail three messages in this thread; meanwhile, if it can, another thread fails three."""

    def work() -> None:
        waker.wake([Due(_Key(), "", 0, 0)] * 3)

    thread = threading.Thread(target=work)

    def meanwhile() -> None:
        thread.start()
        thread.join(0.1)  # with the mutex it cannot end yet

    waker.other = meanwhile
    work()
    thread.join()
    return waker.failed


def test_threads_lose_no_failure() -> None:
    assert failures_of_two(_Slow({"": _Refuser()}, ManualClock())) == 6


def test_the_control_without_the_mutex_they_do() -> None:
    waker = _Slow({"": _Refuser()}, ManualClock())
    waker._mutex = contextlib.nullcontext()  # type: ignore[assignment]
    assert failures_of_two(waker) == 3
