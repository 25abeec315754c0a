"""docs/cookbook.md: its code, and its table of crashes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tests.contract.cookbook.conftest import BEFORE_AND_AFTER, ByHand, Cook, ending
from tests.documents import Page

PAGE = Page("docs/cookbook.md")
CODE = PAGE.take("python", "def schedule")
NOON = datetime.datetime(2026, 11, 24, 12, tzinfo=datetime.UTC)
SECOND = datetime.timedelta(seconds=1)


@pytest.fixture
def names(cook: Cook, by_hand: ByHand) -> dict[str, Any]:
    return cook(CODE)


def billed(names: dict[str, Any], by_hand: ByHand) -> list[int]:
    by_hand.deliver_all()
    by_hand.clock.advance(120)
    names["outbox"].relay()
    by_hand.deliver_all()
    hours: list[int] = names["BILLED"]
    return hours


def test_each_hour_once_by_the_leader(names: dict[str, Any], by_hand: ByHand) -> None:
    for number in range(12):
        names["schedule"]("ab"[number % 2], number // 4, NOON + number * 10 * SECOND)
    assert billed(names, by_hand) == [1, 2]
    assert not names["lead"]("c", NOON + 120 * SECOND)


@BEFORE_AND_AFTER
def test_the_leader_dies(names: dict[str, Any], by_hand: ByHand, after: bool) -> None:
    with ending(names, "bill_next", after=after):
        names["schedule"]("a", 3, NOON)
    names["schedule"]("b", 3, NOON + 29 * SECOND)
    assert billed(names, by_hand) == ([1] if after else []), "it still has the lease"
    names["schedule"]("b", 3, NOON + 31 * SECOND)
    assert billed(names, by_hand) == [1, 2, 3]


def test_it_is_paused(
    names: dict[str, Any], by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = names["bill_next"]
    steps = 0

    def pausing(*args: Any) -> bool:
        nonlocal steps
        steps += 1
        if steps == 2:
            with monkeypatch.context() as patch:
                patch.setitem(names, "bill_next", plain)
                names["schedule"]("b", 5, NOON + 60 * SECOND)
        done: bool = plain(*args)
        return done

    monkeypatch.setitem(names, "bill_next", pausing)
    names["schedule"]("a", 6, NOON)
    assert billed(names, by_hand) == [1, 2, 3, 4, 5], "a's next step finds another leader"
