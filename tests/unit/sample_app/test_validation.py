"""Test the validation of names and texts."""

from __future__ import annotations

import pytest

from sample_app import validation
from sample_app.errors import BadInput


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


@pytest.mark.parametrize("bad", ["", "   ", None, 5, ["x"], "x" * 81, "a\x00b", "a\ud800"])
def test_bad_names(bad: object) -> None:
    with pytest.raises(BadInput, match="name"):
        validation.name(bad)


@pytest.mark.parametrize(
    "bad",
    [0, -1, 181, 1.5, float("nan"), True, None, "", "ten", "1e2", "-3", "٣", "9" * 5000, [9], {}],
)
def test_bad_numbers(bad: object) -> None:
    with pytest.raises(BadInput, match="points: a whole number from 1 to 180"):
        validation.number("points", bad, least=1, most=180)
