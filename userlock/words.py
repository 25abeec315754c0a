"""Write numbers, durations and foreign texts for people."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


def counted(number: int, thing: str) -> str:
    """Return a number with its noun, whose plural ends in s: "1 lock", "1,204 locks"."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def owner_in(namespace: str, owner: str) -> str:
    """Return an owner with its tenant; the default namespace is not named."""
    return f"{owner} in {namespace}" if namespace else owner


def span(seconds: float) -> str:
    """Return a short duration: 215ms, 2.8s, 60s, 3m20s, 5m, 2h05m, 4d03h; `?` if it is none."""
    if not math.isfinite(seconds) or seconds > 1e10:
        return "?"
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole <= 60:  # a lease of 60 seconds is shown as it was asked for
        return f"{whole}s"
    if whole < 3600:
        return _in_two(whole, 60, "m", "s")
    if whole < 86400:
        return _in_two(whole // 60, 60, "h", "m")
    return _in_two(whole // 3600, 24, "d", "h")


def _in_two(small: int, each: int, large_unit: str, small_unit: str) -> str:
    """Return a number of small units in both, the small ones only if there are any."""
    large, rest = divmod(small, each)
    return f"{large}{large_unit}" + (f"{rest:02}{small_unit}" if rest else "")


def meant(name: str, known: Iterable[str], form: str = "{}") -> str:
    """Return a question that names the known name that is nearest; empty if none is near."""
    near = difflib.get_close_matches(name[:40], list(known), 1)
    return f"did you mean {form.format(near[0])}?" if near else ""


def text_of(error: BaseException) -> str:
    """Return an error in words: its text, with its class only where the text is no sentence."""
    text = str(error)
    if " " in text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


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
