"""What people may type."""

from __future__ import annotations

import pytest

from sample_app import catalogue, validation
from sample_app.errors import BadInput, Unknown


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


@pytest.mark.parametrize(("given", "seconds"), [(1, 1), (180, 180), ("90", 90), (" 5 ", 5)])
def test_good_seconds(given: object, seconds: int) -> None:
    assert validation.seconds(given, longest=180) == seconds


@pytest.mark.parametrize(
    "bad",
    [0, -1, 181, 1.5, float("nan"), True, None, "", "ten", "1e2", "-3", "٣", "9" * 5000, [9], {}],
)
def test_bad_seconds(bad: object) -> None:
    with pytest.raises(BadInput, match="from 1 to 180"):
        validation.seconds(bad, longest=180)


def test_the_catalogue_knows_what_it_has() -> None:
    assert catalogue.exercise("primes").points == 15
    assert catalogue.video("tides").length == "4:05"
    assert catalogue.video("tides").points_for(89) == 2
    assert catalogue.course("sky").price == 90
    with pytest.raises(Unknown, match="no video 'primes'"):
        catalogue.video("primes")
