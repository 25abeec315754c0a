"""Words for people."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """So many of a thing, whose plural ends in s: "1 point", "5 points". Also in templates."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
