"""Whole numbers of any length, in text that clients send."""

from userlock_emulator.port.numbers import whole_number

NINES = "9" * 5000


def test_a_number_up_to_ten() -> None:
    good = {"0": 0, "7": 7, "0" * 5000 + "7": 7, "10": 10}
    assert {text: whole_number(text, most=10) for text in good} == good
    for bad in ("11", NINES, "", "-1", "+1", "1.0", " 1", "1\n", "\u0663", "1_0", "0x1"):
        assert whole_number(bad, most=10) is None, bad[:9]


def test_signs_and_clipping() -> None:
    for text, number in (("-5", -5), ("+5", 5), ("-6", None), (f"-{NINES}", None), (NINES, None)):
        assert whole_number(text, least=-5, most=5) == number
    assert whole_number(NINES, most=10, clip=True) == 10
    assert whole_number(f"-{NINES}", least=-5, most=5, clip=True) == -5
