"""Whole numbers in text that clients send: of any length, without an error of Python's own.

`int` refuses more than 4,300 digits with a ValueError, and takes digits of other scripts.
"""

import re

_NUMBER = re.compile(r"([+-]?)0*([0-9]+)")


def whole_number(text: str, *, most: int, least: int = 0, clip: bool = False) -> int | None:
    """Return the number in a text, or None if it is none or out of range.

    Args:
        most, least: the range, ends included. It may be empty.
        clip: return `most` or `least` for a number beyond it.
    """
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, digits = match.groups()
    if sign and least == 0:
        return None
    beyond = len(digits) > len(str(max(most, -least)))
    number = max(most, -least) + 1 if beyond else int(digits)
    number = -number if sign == "-" else number
    clipped = min(max(number, least), most)
    return clipped if clip or least <= number <= most else None
