"""Waiters record their visits, with a lock and without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks import racers
from benchmarks.contest import Contest, Diary
from benchmarks.peers import Lock, TimedOut
from benchmarks.racers import Rules, Times

RULES = Rules(section=0.002, most_think=0.0, window=0.1, warm_up=0.4)


class _Mutex:
    def __init__(self, mutex: threading.Lock) -> None:
        self._mutex = mutex

    def acquire(self) -> bool:
        return self._mutex.acquire()

    def release(self) -> None:
        self._mutex.release()


class _NoLock:
    """A lock that lets all in."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class _Broken(_NoLock):
    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error

    def acquire(self) -> bool:
        time.sleep(0.01)
        raise self._error()


class _Unconfirmed(_NoLock):
    def acquire(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def _no_locks_are_left() -> Iterator[None]:
    yield
    racers._locks.clear()


def run(*locks: Lock) -> tuple[Contest, list[Diary]]:
    racers._locks[:] = locks
    now = time.monotonic()
    times = Times(now, now + 0.02, now + 0.12)
    diaries, _ = racers.race("", "", 0, RULES, times)
    return Contest(times.opened_at, times.closed_at, diaries), diaries


def test_with_a_lock_no_visits_overlap() -> None:
    mutex = threading.Lock()
    contest, diaries = run(*(_Mutex(mutex) for _ in range(4)))
    assert sum(contest.acquisitions()) > 0
    assert contest.overlaps() == []
    assert contest.errors() == []
    for diary in diaries:
        for visit in diary.visits:
            assert visit.asked_at <= visit.granted_at <= visit.released_at
            if visit.granted_at < contest.closed_at:
                assert visit.released_at - visit.granted_at >= RULES.section


def test_without_a_lock_visits_overlap() -> None:
    """The negative control."""
    contest, _ = run(*(_NoLock() for _ in range(4)))
    assert contest.overlaps()


def test_a_timeout_is_recorded_and_retried() -> None:
    contest, (diary,) = run(_Broken(TimedOut))
    assert contest.timeouts() > 1
    assert all(refusal.ended_at > refusal.asked_at for refusal in diary.refusals)
    assert contest.errors() == []


def test_an_error_ends_a_waiter_and_is_reported() -> None:
    contest, (diary,) = run(_Broken(lambda: ConnectionError("gone")))
    assert contest.errors() == ["ConnectionError: gone"]
    assert not diary.visits


def test_a_degraded_lock_is_an_error() -> None:
    contest, _ = run(_Unconfirmed())
    assert len(contest.errors()) == 1


def test_a_starved_waiter_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racers, "PATIENCE_SECONDS", 0.01)
    mutex = threading.Lock()
    mutex.acquire()
    contest, (diary,) = run(_Mutex(mutex))
    mutex.release()
    assert diary.stuck
    assert contest.longest_wait() >= RULES.window
