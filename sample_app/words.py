"""Words for display."""

from __future__ import annotations


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, whose plural ends in s: "1 point", "5 points". Also for
    templates."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
