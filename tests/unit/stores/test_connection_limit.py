"""Connections that are handed on when there may be no more of them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from userlock.lock.store import NoConnection, StoreUnavailable
from userlock.stores.connection_limit import Place, Places

Given = str | Place


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def idle() -> list[str]:
    return []


def waiting_thread(places: Places[str], threads: ThreadPoolExecutor) -> Future[Given]:
    """Return another thread's call of `take`, which waits by now."""
    before = len(places.waiters)
    call = threads.submit(places.take, 10)
    while len(places.waiters) == before:
        os.sched_yield()
    return call


def test_the_number_of_places_is_bounded(idle: list[str]) -> None:
    places = Places(2, idle)
    held = [places.take(0), places.take(0)]
    with pytest.raises(NoConnection, match="all 2 connections are in use"):
        places.take(0)
    assert len({id(each) for each in held}) == 2


def test_an_idle_connection_comes_first(idle: list[str]) -> None:
    idle.append("connection")
    assert Places(1, idle).take(0) == "connection"
    assert idle == []


def test_waiting_threads_are_served_in_order(idle: list[str], threads: ThreadPoolExecutor) -> None:
    places = Places(1, idle)
    held = places.take(0)
    first, second = waiting_thread(places, threads), waiting_thread(places, threads)
    idle.append("connection")
    places.hand_on()
    assert first.result(10) == "connection"
    assert not second.done()
    del held  # closed, after an error
    places.hand_on()
    assert isinstance(second.result(10), Place)


def test_the_failure_of_one_thread_fails_those_that_wait(
    idle: list[str], threads: ThreadPoolExecutor
) -> None:
    """Otherwise each would find out by itself, one after another."""
    places = Places(1, idle)
    held = places.take(0)
    waiting = [waiting_thread(places, threads) for _ in range(5)]
    places.refuse("timed out")
    for each in waiting:
        with pytest.raises(StoreUnavailable, match="timed out") as caught:
            each.result(10)
        assert not caught.value.sent
        assert not isinstance(caught.value, NoConnection)
    with pytest.raises(NoConnection):  # later ones try
        places.take(0)
    del held
    assert isinstance(places.take(0), Place)


def test_a_connection_handed_on_is_not_there_for_others(
    idle: list[str], threads: ThreadPoolExecutor
) -> None:
    """Otherwise a running thread would always be faster than one still to be woken."""
    places = Places(1, idle)
    held = places.take(0)
    waiting = waiting_thread(places, threads)
    idle.append("connection")
    places.hand_on()
    assert idle == []
    with pytest.raises(NoConnection):
        places.take(0)
    assert waiting.result(10) == "connection"
    assert held is not None


def test_a_kept_place_can_be_freed(idle: list[str]) -> None:
    """An error keeps the frames that it went through, and what they refer to."""
    places = Places(1, idle)
    kept = places.take(0)
    assert isinstance(kept, Place)
    places.free(kept)
    assert isinstance(places.take(0), Place)


def test_an_interrupted_thread_waits_no_longer(
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


def test_a_place_freed_during_an_interrupt_is_not_lost() -> None:
    """Python ignores an error in a weak reference's callback, which is cut short by it."""
    places = Places[str](1, [])
    place = Place()
    places._taken.data.add(weakref.ref(place))  # type: ignore[attr-defined]
    del place
    assert len(places._taken) == 1
    assert isinstance(places.take(0), Place)
