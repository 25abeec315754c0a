"""Whole numbers that clients send: the only parser for those in forms, addresses and JSON.

`int` alone takes digits of other scripts, and refuses more than 4,300 with an error of its own.
"""

from __future__ import annotations

import re

_NUMBER = re.compile(r"\s*0*([0-9]{1,19})\s*")


def whole_number(value: object, *, least: int, most: int) -> int | None:
    """Return a number from `least` to `most`, also as text; None for everything else."""
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        value = int(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value
