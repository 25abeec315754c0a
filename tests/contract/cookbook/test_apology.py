"""docs/cookbook.md: its code, and its table of crashes."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.contract.cookbook.conftest import ByHand, Cook
from tests.contract.outbox.conftest import Died
from tests.documents import Page
from userlock.outbox.rows import JobRow

PAGE = Page("docs/cookbook.md")
CODE = PAGE.take("python", "def apologise")
BUYERS = ["ann", "bob", "cem", "dan"]


@pytest.fixture
def names(cook: Cook, by_hand: ByHand) -> dict[str, Any]:
    return cook(CODE)


def relay(names: dict[str, Any], by_hand: ByHand) -> None:
    """Let the relay find what has been left, and run it."""
    for _ in range(3):
        by_hand.clock.advance(1000)  # longer than a job without a lock is claimed
        names["outbox"].relay()
        by_hand.deliver_all()


def valid(names: dict[str, Any]) -> list[str]:
    found = sorted(names["Booking"].query(), key=lambda each: each.created)
    return [each.user_id for each in found if not each.cancelled]


def check_all_is_right(names: dict[str, Any]) -> None:
    """Check who has a seat, and that each of the others has one refund and one mail."""
    assert valid(names) == BUYERS[: names["SEATS"]]
    late = BUYERS[names["SEATS"] :]
    assert list(names["REFUNDS"].values()) == [2000] * len(late)
    assert sorted(names["MAILS"].values()) == [f"{each}: the course is full" for each in late]
    assert JobRow.query(namespace="").count() == 0


def test_too_many_are_sold(names: dict[str, Any], by_hand: ByHand) -> None:
    for user in BUYERS:
        names["book"](user, "figures")
    assert valid(names) == BUYERS, "nobody was refused"
    by_hand.deliver_all()
    check_all_is_right(names)


def ending_once(function: Any, error: type[BaseException], *, after: bool) -> Any:
    """Return a function that ends the process at its first call: before or after it has run."""
    left = [error]

    def ends(*args: Any) -> Any:
        if after or not left:
            done = function(*args)
        if left:
            raise left.pop()
        return done

    return ends


class _Provider(dict[str, Any]):
    """A service; one that does not know keys if `knows_keys` is false."""

    knows_keys = True

    def setdefault(self, key: str, value: Any = None) -> Any:
        return super().setdefault(key if self.knows_keys else f"{key}-{len(self)}", value)


def book_with_a_crash(names: dict[str, Any], by_hand: ByHand, line: int, *, after: bool) -> None:
    names["REFUNDS"], names["MAILS"] = _Provider(), _Provider()
    where, name = {
        1: (names["count"], "stage"),
        2: (names["cancel"], "stage_now"),
        3: (names["apologise"], "stage"),
        4: (names["REFUNDS"], "setdefault"),
        5: (names["MAILS"], "setdefault"),
    }[line]
    # In a transaction an `Exception`: ndb does not end one after another error.
    error = {1: LookupError, 2: Died, 3: LookupError}.get(line, SystemExit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, ending_once(getattr(where, name), error, after=after))
        if line == 1:
            with pytest.raises(LookupError):
                names["book"](BUYERS[0], "figures")
            assert valid(names) == [], "neither the booking nor its count"
        for user in BUYERS:
            names["book"](user, "figures")
        with pytest.raises(Died) if line == 2 else contextlib.nullcontext():
            by_hand.deliver_all()
        relay(names, by_hand)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("line", [1, 2, 3, 4, 5])
def test_a_crash(names: dict[str, Any], by_hand: ByHand, line: int, after: bool) -> None:
    book_with_a_crash(names, by_hand, line, after=after)
    check_all_is_right(names)


@pytest.mark.parametrize("line", [4, 5])
def test_the_control_services_that_know_no_keys(
    names: dict[str, Any], by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    monkeypatch.setattr(_Provider, "knows_keys", False)
    book_with_a_crash(names, by_hand, line, after=True)
    with pytest.raises(AssertionError):
        check_all_is_right(names)


def test_a_second_cancellation_does_nothing(names: dict[str, Any], by_hand: ByHand) -> None:
    for user in BUYERS:
        names["book"](user, "figures")
    names["count"].function("figures")
    names["count"].function("figures")
    by_hand.deliver_all()
    check_all_is_right(names)
