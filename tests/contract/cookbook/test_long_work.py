"""docs/cookbook/long-work.md: its code, and its table of crashes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.cookbook.conftest import Cook, Died
from tests.documents import Page
from tests.waiting import wait_until
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

PAGE = Page("docs/cookbook/long-work.md")
CODE = PAGE.take("python", "def recount")
#: Three batches, the last one short.
LESSONS = 50


@pytest.fixture
def names(cook: Cook) -> dict[str, Any]:
    names = cook(CODE)
    with userlock.global_lock("ann"):
        lessons = [names["Lesson"](parent=ndb.Key("User", "ann"), points=1) for _ in range(LESSONS)]
        ndb.put_multi(lessons)
    return names


def grading(names: dict[str, Any], at: int, then: Callable[[], None]) -> list[int]:
    """Let `then` be called when that many have been graded. Returns the calls of each batch."""
    graded: list[int] = []
    plain = names["grade"]

    def grade(lesson: Any) -> Any:
        graded.append(lesson.key.id())
        if len(graded) == at:
            then()
        return plain(lesson)

    names["grade"] = grade
    return graded


def test_all_of_them(names: dict[str, Any]) -> None:
    assert names["recount"]("ann") == LESSONS
    assert names["Recount"].query().count() == 0
    assert names["recount"]("ann") == LESSONS


@pytest.mark.parametrize("at", [1, 20, 21, 45])
def test_it_dies(names: dict[str, Any], at: int) -> None:
    def die() -> None:
        raise Died

    graded = grading(names, at, die)
    with pytest.raises(Died):
        names["recount"]("ann")
    assert names["recount"]("ann") == LESSONS
    twice = len(graded) - len(set(graded))
    assert twice == (at - 1) % names["BATCH"] + 1, "this batch, as far as it was"


def test_the_lease_is_extended(names: dict[str, Any]) -> None:
    clock = ManualClock()
    userlock.configure(service=userlock.LockService(MemoryStore(clock=clock), clock=clock))
    plain = names["grade"]

    def slow(lesson: Any) -> Any:
        clock.advance(9)
        return plain(lesson)

    names["grade"] = slow
    assert names["recount"]("ann") == LESSONS


def test_a_process_that_was_paused_ends(names: dict[str, Any]) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    userlock.configure(service=userlock.LockService(store, clock=clock))

    def pause() -> None:
        clock.advance(60)
        other = userlock.LockService(store, clock=clock)
        with userlock.scope(other):
            assert names["recount"]("ann") == LESSONS

    grading(names, 25, pause)
    with pytest.raises(userlock.LockNotHeld):
        names["recount"]("ann")


def test_a_click_of_the_user_passes(names: dict[str, Any], ndb_client: ndb.Client) -> None:
    after: list[int] = []

    def click() -> None:
        with ndb_client.context(), userlock.global_lock("ann"):
            after.append(len(graded))

    user = threading.Thread(target=click)

    def queue() -> None:
        user.start()
        wait_until(lambda: userlock.waiters("ann"), 10)

    graded = grading(names, 5, queue)
    assert names["recount"]("ann") == LESSONS
    user.join()
    assert after == [names["BATCH"]], "between two batches"
