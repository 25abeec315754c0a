"""Test the validation of names and texts."""

from __future__ import annotations

from typing import Any

import pytest

from sample_app import validation
from sample_app.errors import BadInput

IDS = [
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
]
NAMES = ["", "   ", None, 5, ["x"], "x" * 81, "a\x00b", "a\ud800"]
NUMBERS: list[object] = [
    0,
    -1,
    181,
    1.5,
    float("nan"),
    True,
    None,
    "",
    "ten",
    "1e2",
    "-3",
    "٣",
    "9" * 5000,
    [9],
    {},
]


def test_what_is_refused() -> None:
    def refused(check: Any, message: str, *bad: object) -> None:
        for each in bad:
            with pytest.raises(BadInput, match=message):
                check(each)

    refused(validation.learner_id, "small letters", *IDS)
    refused(validation.name, "name", *NAMES)
    refused(
        lambda bad: validation.number("points", bad, least=1, most=180),
        "points: a whole number from 1 to 180",
        *NUMBERS,
    )
