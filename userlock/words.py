"""Write numbers, durations and foreign texts for people."""

from __future__ import annotations

import math


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, whose plural ends in s: "1 lock", "1,204 locks"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def span(seconds: float) -> str:
    """Return a short duration: 215ms, 2.8s, 12s, 3m20s, 2h05m, 4d03h; `?` if it is none."""
    if not math.isfinite(seconds) or seconds > 1e10:
        return "?"
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def escaped(text: str) -> str:
    """Return a foreign text with unprintable characters escaped, harmless to logs and terminals."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def legible(text: str, most: int) -> str:
    """Return a foreign text, escaped, in at most so many characters and an ellipsis."""
    shown = escaped(text[:most])
    return shown if len(text) <= most and len(shown) <= most else f"{shown[:most]}…"
