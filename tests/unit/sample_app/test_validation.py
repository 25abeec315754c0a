"""Test the validation of names and texts."""

from __future__ import annotations

import pytest

from sample_app import catalogue, validation
from sample_app.errors import BadInput


@pytest.mark.parametrize("good", ["a", "7", "ada", "ada-2", "a--b", "x" * 40])
def test_good_ids(good: str) -> None:
    assert validation.learner_id(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        " ",
        "Ada",
        "-a",
        "a-",
        "a b",
        "a/b",
        "ada\n",
        "é",
        "٣",
        "x" * 41,
        "__x__",
        None,
        7,
        ["a"],
    ],
)
def test_bad_ids(bad: object) -> None:
    with pytest.raises(BadInput, match="small letters"):
        validation.learner_id(bad)


def test_names_are_trimmed_and_keep_their_script() -> None:
    assert validation.name("  Ada   Lindqvist ") == "Ada Lindqvist"
    assert validation.name("陈梅") == "陈梅"
    assert validation.name("<b>") == "<b>"


@pytest.mark.parametrize("bad", ["", "   ", None, 5, ["x"], "x" * 81, "a\x00b", "a\ud800"])
def test_bad_names(bad: object) -> None:
    with pytest.raises(BadInput, match="name"):
        validation.name(bad)


@pytest.mark.parametrize(
    ("name", "made"),
    [("Grace Hopper", "grace-hopper"), ("Zoë Ångström!", "zoe-angstrom"), ("x" * 90, "x" * 40)],
)
def test_an_id_is_made_from_a_name(name: str, made: str) -> None:
    assert validation.id_from_name(name) == made
    assert validation.learner_id(made) == made


def test_a_name_without_plain_letters_needs_an_id() -> None:
    with pytest.raises(BadInput, match="choose an id"):
        validation.id_from_name("陈梅")


@pytest.mark.parametrize(("given", "number"), [(1, 1), (180, 180), ("90", 90), (" 5 ", 5)])
def test_good_numbers(given: object, number: int) -> None:
    assert validation.number("points", given, least=1, most=180) == number


@pytest.mark.parametrize(
    "bad",
    [0, -1, 181, 1.5, float("nan"), True, None, "", "ten", "1e2", "-3", "٣", "9" * 5000, [9], {}],
)
def test_bad_numbers(bad: object) -> None:
    with pytest.raises(BadInput, match="points: a whole number from 1 to 180"):
        validation.number("points", bad, least=1, most=180)


@pytest.mark.parametrize("bad", [None, [], [0, 0], [0, 0, 0, 0], [0, 0, 3], [0, 0, -1], "000"])
def test_bad_answers(bad: object) -> None:
    with pytest.raises(BadInput, match="answers"):
        validation.answers(bad, catalogue.exercise("primes"))


def test_a_line_may_be_left_out_where_it_says_so() -> None:
    assert validation.line("word", " ", longest=5, empty=True) == ""
    with pytest.raises(BadInput, match="word: at most 5"):
        validation.line("word", "sixsix", longest=5, empty=True)
