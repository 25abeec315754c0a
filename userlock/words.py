"""Words for people."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """So many of a thing, whose plural ends in s: "1 lock", "1,204 locks"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
