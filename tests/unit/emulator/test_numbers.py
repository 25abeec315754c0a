"""Whole numbers of any length, in text that clients send."""

import pytest

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


def test_signs_and_clipping() -> None:
    for text, number in (("-5", -5), ("+5", 5), ("-6", None), (f"-{NINES}", None), (NINES, None)):
        assert whole_number(text, least=-5, most=5) == number
    assert whole_number(NINES, most=10, clip=True) == 10
    assert whole_number(f"-{NINES}", least=-5, most=5, clip=True) == -5
