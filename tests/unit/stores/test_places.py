"""Connections that are handed on when there may be no more of them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from userlock.stores.connection_limit import Place, Places

Given = str | Place


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def idle() -> list[str]:
    return []


def in_line(places: Places[str], threads: ThreadPoolExecutor) -> Future[Given]:
    """Another thread's call of `take`, which waits by now."""
    before = len(places.waiters)
    call = threads.submit(places.take, 10)
    while len(places.waiters) == before:
        os.sched_yield()
    return call


def test_there_are_so_many(idle: list[str]) -> None:
    places = Places(2, idle)
    held = [places.take(0), places.take(0)]
    with pytest.raises(TimeoutError, match="all 2 connections are in use"):
        places.take(0)
    assert len({id(each) for each in held}) == 2


def test_what_stands_idle_comes_first(idle: list[str]) -> None:
    idle.append("connection")
    assert Places(1, idle).take(0) == "connection"
    assert idle == []


def test_those_who_wait_are_served_in_order(idle: list[str], threads: ThreadPoolExecutor) -> None:
    places = Places(1, idle)
    held = places.take(0)
    first, second = in_line(places, threads), in_line(places, threads)
    idle.append("connection")
    places.hand_on()
    assert first.result(10) == "connection"
    assert not second.done()
    del held  # closed, after an error
    places.hand_on()
    assert isinstance(second.result(10), Place)


def test_what_is_handed_on_is_not_there_for_others(
    idle: list[str], threads: ThreadPoolExecutor
) -> None:
    """Or one that runs would always be faster than one that is still to be woken."""
    places = Places(1, idle)
    held = places.take(0)
    waiting = in_line(places, threads)
    idle.append("connection")
    places.hand_on()
    assert idle == []
    with pytest.raises(TimeoutError):
        places.take(0)
    assert waiting.result(10) == "connection"
    assert held is not None


def test_a_place_that_is_dropped_is_free(idle: list[str]) -> None:
    places = Places(1, idle)
    for _ in range(3):
        assert isinstance(places.take(0), Place)


def test_a_place_that_is_kept_can_be_freed(idle: list[str]) -> None:
    """An error keeps the frames that it went through, and what they refer to."""
    places = Places(1, idle)
    kept = places.take(0)
    assert isinstance(kept, Place)
    places.free(kept)
    assert isinstance(places.take(0), Place)


def test_one_that_is_interrupted_waits_no_longer(
    idle: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(1, idle)
    held = places.take(0)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            places.take(10)
    assert not places.waiters
    assert held is not None


def test_one_that_is_freed_while_the_thread_is_being_stopped_is_not_lost() -> None:
    """Python ignores what is raised in a weak reference's callback, which is cut short by it."""
    places = Places[str](1, [])
    place = Place()
    places._taken.data.add(weakref.ref(place))  # type: ignore[attr-defined]
    del place
    assert len(places._taken) == 1
    assert isinstance(places.take(0), Place)
