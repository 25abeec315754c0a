"""Values that count as one become equal; others do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userlock.constraints import caseless, image_name


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Summer", "SUMMER"),
        ("Straße", "STRASSE"),
        ("café", "CAFE\N{COMBINING ACUTE ACCENT}"),
        ("\N{LATIN SMALL LIGATURE FI}ne", "FINE"),
        ("\N{FULLWIDTH LATIN SMALL LETTER A}", "A"),
        ("  a \t b\n", "A B"),
        ("\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK CAPITAL LETTER SIGMA}"),
        ("\N{NO-BREAK SPACE}a", "a"),
    ],
)
def test_the_same_without_case(one: str, other: str) -> None:
    assert caseless(one) == caseless(other)


@pytest.mark.parametrize(("one", "other"), [("a", "b"), ("a b", "ab"), ("é", "e"), ("", "a")])
def test_not_the_same(one: str, other: str) -> None:
    assert caseless(one) != caseless(other)


@given(st.text())
def test_folding_twice_changes_nothing(text: str) -> None:
    assert caseless(caseless(text)) == caseless(text)


@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_case_does_not_count(text: str) -> None:
    assert caseless(text.casefold()) == caseless(text)


@pytest.mark.parametrize(
    "name",
    ["home", "home.png", "home.jpg", "Home@2x.png", "HOME@3X.GIF", "home@1.5x.webp", " home.png "],
)
def test_one_picture(name: str) -> None:
    assert image_name(name) == "home"


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("home.page.png", "home.page"),
        ("v1.2", "v1.2"),
        ("v1.2.png", "v1.2"),
        (".png", ".png"),
        ("@2x.png", "@2x.png"),
        ("a/home.png", "a/home"),
        ("x@2y.png", "x@2y"),
        ("", ""),
    ],
)
def test_other_names(name: str, base: str) -> None:
    assert image_name(name) == base


@given(st.text())
def test_no_name_becomes_empty(name: str) -> None:
    assert bool(image_name(name)) is bool(caseless(name))


def test_a_long_text_is_refused_before_any_work() -> None:
    accents = "\N{COMBINING ACUTE ACCENT}\N{COMBINING CEDILLA}" * 10**6
    for fold in (caseless, image_name):
        with pytest.raises(ValueError, match="2,000,001 characters"):
            fold(f"a{accents}")
    assert len(caseless("a" * 1_500)) == 1_500
