"""Whole numbers of any length, in text that clients send."""

from __future__ import annotations

import pytest

from userlock_emulator.datastore.errors import Code, DatastoreError
from userlock_emulator.datastore.gql_values import integer
from userlock_emulator.port.numbers import whole_number

NINES = "9" * 5000


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("7", 7), ("0" * 5000 + "7", 7), ("10", 10), ("11", None), (NINES, None),
        ("", None), ("-1", None), ("+1", None), ("1.0", None), (" 1", None), ("1\n", None),
        ("\u0663", None), ("1_0", None), ("0x1", None),
    ],
)  # fmt: skip
def test_a_number_up_to_ten(text: str, number: int | None) -> None:
    assert whole_number(text, most=10) == number


@pytest.mark.parametrize(
    ("text", "number"), [("-5", -5), ("+5", 5), ("-6", None), (f"-{NINES}", None), (NINES, None)]
)
def test_signs(text: str, number: int | None) -> None:
    assert whole_number(text, least=-5, most=5) == number


def test_clipping() -> None:
    assert whole_number(NINES, most=10, clip=True) == 10
    assert whole_number(f"-{NINES}", least=-5, most=5, clip=True) == -5


def test_the_limits_of_gql() -> None:
    assert integer(str(2**63 - 1)) == 2**63 - 1
    assert integer(str(-(2**63))) == -(2**63)
    for text in (str(2**63), str(-(2**63) - 1), NINES, f"-{NINES}"):
        with pytest.raises(DatastoreError, match="is out of range") as caught:
            integer(text)
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert len(caught.value.message) < 100
