"""The threads that wait and release on behalf of tasks: idle ones, and none left."""

from __future__ import annotations

import asyncio
import threading

import pytest

import userlock
from tests.waiting import wait_until
from userlock import LockService
from userlock.events import Listeners
from userlock.lock import tasks
from userlock.stores import MemoryStore


def test_threads_that_stand_idle_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_IDLE_SECONDS", 0.01)
    before = threading.active_count()
    threads = tasks.Threads("idle", 50)
    for _ in range(20):
        done = [threads.submit(threading.get_ident) for _ in range(100)]
        assert len({each.result(10) for each in done}) <= 50
    wait_until(lambda: threading.active_count() <= before)
    assert threads.submit(lambda: "again").result(10) == "again"


# --- the system refuses to begin one ---------------------------------------------------------


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_lock_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    service = LockService(MemoryStore(), listeners=Listeners())
    userlock.configure(service=service)
    monkeypatch.setattr(tasks._threads, "releasing", tasks.Threads("none", 1))

    async def work() -> None:
        async with userlock.global_lock("ann"):
            monkeypatch.setattr(threading.Thread, "start", _refuse)
        assert service.holder("ann") is None

    asyncio.run(work())


def test_the_others_make_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, begun, go_on = tasks.Threads("some", 5), threading.Event(), threading.Event()

    def first() -> int:
        begun.set()
        assert go_on.wait(30)
        return 1

    waiting = [threads.submit(first)]
    assert begun.wait(30)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        waiting.append(threads.submit(lambda: 2))
    go_on.set()
    assert [each.result(30) for each in waiting] == [1, 2]


def test_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = tasks.Threads("none", 5)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.submit(lambda: 1)
    assert threads.submit(lambda: 2).result(30) == 2
