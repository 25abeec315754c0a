"""Copies get the first free name, by few look-ups, and any number of them at once."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.constraints.models import Campaign, Seat, campaign, check_claims, put
from tests.contract.ndb.servers import Wire
from userlock.constraints import Unique, put_as_copy
from userlock.constraints.copies import first_free

pytestmark = pytest.mark.usefixtures("context", "quick_retries")


def copy(title: str, **options: Any) -> str:
    values = {name: options.pop(name) for name in ("archived", "owner") if name in options}
    with userlock.global_lock(values.get("owner", "ann")):
        return put_as_copy(campaign(title, **values), "title", **options)


def test_the_first_free_name() -> None:
    assert [copy("Email Campaign") for _ in range(3)] == [
        "Email Campaign",
        "Email Campaign (Copy 1)",
        "Email Campaign (Copy 2)",
    ]
    assert copy("EMAIL CAMPAIGN") == "EMAIL CAMPAIGN (Copy 3)"
    assert copy("Email Campaign", owner="bob") == "Email Campaign"
    check_claims(Campaign)


def test_suffixes_are_not_stacked() -> None:
    put("Email (Copy 1)")
    put("Email")
    assert copy("Email (Copy 1)") == "Email (Copy 2)"
    assert copy("Email (Copy 1) (Copy 4)") == "Email (Copy 1) (Copy 4)"
    assert copy("Email (Copy 1) (Copy 4)") == "Email (Copy 3)"


def test_an_archived_one_is_activated_under_its_name_or_the_next() -> None:
    first = put("Email")
    old = put("Email", archived=True)
    with userlock.global_lock("ann"):
        old = old.key.get(use_cache=False)
        assert put_as_copy(old, "title") == "Email"
        old.archived = False
        assert put_as_copy(old, "title") == "Email (Copy 1)"
        assert put_as_copy(old, "title") == "Email (Copy 1)"
        first.key.delete()
        old.title = "Email"
        assert put_as_copy(old, "title") == "Email"
    check_claims(Campaign)


def test_another_pattern() -> None:
    put("Email")
    assert copy("Email", pattern="{n}. {name}") == "1. Email"
    assert copy("1. Email", pattern="{n}. {name}") == "2. Email"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        *(({"pattern": pattern}, "pattern") for pattern in ("", "{name}", "{n}", "{name} {n} {n}")),
        *(({"pattern": None}, "None"), ({"max_length": None}, "None")),
        *(({"max_length": 9}, "room"), ({"max_length": 5}, "has 6 characters")),
    ],
)
def test_options_of_no_use(options: dict[str, Any], text: str) -> None:
    put("Emails")
    with pytest.raises(ValueError, match=text):
        copy("Emails", **options)


def test_the_length_is_bounded() -> None:
    put("x" * 100)
    put("ß" * 748)
    assert copy("x" * 100, max_length=100) == "x" * 91 + " (Copy 1)"
    assert len(copy("ß" * 748).encode()) in (1499, 1500)


@pytest.mark.parametrize(
    ("entity", "name", "error"),
    [
        *((entity, "title", "_unique") for entity in (None, ndb.Model(), "Email")),
        *((Campaign, name, "title") for name in ("titel", "points", Campaign.title, None)),
    ],
)
def test_entities_and_names_that_do_not_count(entity: Any, name: Any, error: str) -> None:
    with pytest.raises(userlock.ConfigurationError, match=error):
        put_as_copy(campaign("Email") if entity is Campaign else entity, name)


def test_a_name_that_is_no_text() -> None:
    with pytest.raises(ValueError, match="text"):
        put_as_copy(campaign(None), "title")  # type: ignore[arg-type]


class Letters(userlock.Model):
    """Only letters count."""

    _write_policy = userlock.WritePolicy.unsafe("claims hold without policies")
    _unique = (
        Unique("title", per="all", fold=lambda text: re.sub("[^a-z]", "", text.lower())),
        Unique("short", per="all", fold=lambda text: text[:14]),
    )
    title = ndb.StringProperty(validator=lambda _, value: value.lower())
    short = ndb.StringProperty()

    @classmethod
    def _get_kind(cls) -> str:
        return "TestedLetters"


@pytest.mark.parametrize(
    ("values", "times", "text"),
    [
        ({"title": "Summer"}, 1, "the same value"),
        ({"short": "Summer in the city"}, 1, "the same value"),  # and the name, too
        ({"short": "Summer"}, 11, "no copy up to number"),  # nine numbers have one digit
    ],
)
def test_folds_that_make_copies_equal(values: dict[str, str], times: int, text: str) -> None:
    (name,) = values

    def put_many() -> None:
        for _ in range(times):
            put_as_copy(Letters(**values), name)

    with pytest.raises(ValueError, match=text):
        put_many()


def test_the_returned_name_is_the_stored_one() -> None:
    class Lower(userlock.Model):
        _write_policy = userlock.WritePolicy.unsafe("claims hold without policies")
        _unique = (Unique("title", per="all"),)
        title = ndb.StringProperty(validator=lambda _, value: value.lower())

        @classmethod
        def _get_kind(cls) -> str:
            return "TestedLower"

    got = [put_as_copy(Lower(title="Summer"), "title") for _ in range(2)]
    assert got == ["summer", "summer (copy 1)"]
    assert sorted(each.title for each in Lower.query()) == got


def test_what_its_transaction_has_done_before() -> None:
    with userlock.global_lock("ann"):

        def twice() -> str:
            made = campaign("x")
            made.put()
            return put_as_copy(made, "title")

        assert ndb.transaction(twice) == "x", "its own"

        def after_another() -> list[str]:
            campaign("new").put()
            campaign("other").put()
            return [put_as_copy(campaign(title), "title") for title in ("new", "other")]

        assert ndb.transaction(after_another) == ["new (Copy 1)", "other (Copy 1)"]
        key = Campaign.query(Campaign.title == "x").get(keys_only=True)

        def after_its_delete() -> str:
            key.delete()
            return put_as_copy(campaign("x"), "title")

        assert ndb.transaction(after_its_delete) == "x"

        def after_its_rename() -> str:
            old = Campaign.query(Campaign.title == "x").get(read_policy=ndb.STRONG)
            old.title = "y"
            old.put()
            return put_as_copy(campaign("x"), "title")

        assert after_its_rename() == "x"
    check_claims(Campaign)


def test_another_constraint_raises_at_once() -> None:
    Seat(id="a", row="A", number=1, code="x").put()
    seat = Seat(id="b", row="A", number=1, code="x")
    with pytest.raises(userlock.NotUnique, match="row 'A'"):
        put_as_copy(seat, "code")
    assert seat.code == "x"


class TestLookUps:
    def test_of_each_copy(self, wire: Wire) -> None:
        for number in range(1, 12):
            before = len(wire.rpcs)
            title = copy("Email")
            lookups = wire.names[before:].count("lookup")
            assert title == ("Email" if number == 1 else f"Email (Copy {number - 1})")
            assert lookups <= max(2, 2 * math.log2(number)), f"{title}: {lookups}"

    def test_of_the_nth(self) -> None:
        for count in [0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 10**6]:
            asked: list[int] = []

            def taken(numbers: Any, count: int = count, asked: list[int] = asked) -> set[int]:
                asked.append(1)
                return {number for number in numbers if number < count}

            assert first_free(taken) == count
            assert len(asked) <= max(1, 2 * math.log2(max(count, 1)))


def test_with_gaps_it_is_one_that_is_free() -> None:
    holes = {3, 17, 40}
    free = first_free(lambda numbers: {each for each in numbers if each < 60 and each not in holes})
    assert free in holes | {60}
