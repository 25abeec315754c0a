"""docs/cookbook.md: its code, and its table of crashes."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.cookbook.conftest import Cook
from tests.contract.outbox.conftest import Died
from tests.documents import Page
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

PAGE = Page("docs/cookbook.md")
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


@pytest.mark.parametrize("died_at", [None, 20, 21])
def test_it_goes_on_after_the_last_batch(names: dict[str, Any], died_at: int | None) -> None:
    graded: list[int] = []
    plain = names["grade"]

    def grade(lesson: Any) -> Any:
        graded.append(lesson.key.id())
        if len(graded) == died_at:
            raise Died
        return plain(lesson)

    names["grade"] = grade
    if died_at is not None:
        with pytest.raises(Died):
            names["recount"]("ann")
    assert names["recount"]("ann") == LESSONS
    twice = len(graded) - len(set(graded))
    assert twice == (0 if died_at is None else (died_at - 1) % names["BATCH"] + 1)
    assert names["Recount"].query().count() == 0


@pytest.mark.parametrize("seconds", [9, 60])
def test_the_lease_is_extended_unless_it_has_ended(names: dict[str, Any], seconds: int) -> None:
    clock = ManualClock()
    userlock.configure(service=userlock.LockService(MemoryStore(clock=clock), clock=clock))
    plain = names["grade"]

    def slow(lesson: Any) -> Any:
        clock.advance(seconds)
        return plain(lesson)

    names["grade"] = slow
    if seconds < 10:
        assert names["recount"]("ann") == LESSONS
    else:
        with pytest.raises(userlock.LockNotHeld):
            names["recount"]("ann")
