"""Draw the timelines of the documentation as SVG.

In the pages a timeline is text, which is read as it is in an editor and on the code host:

    A                record        B
    append =A ─────▶ A +B =A
                             ◀──── read: free

In the site the same text stands in the same places, the arrows are lines, and the words of the
first row head their columns. Colours come from the page's style sheet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

#: The size of a character, in units of the drawing.
_WIDTH = 8.0
_HEIGHT = 22.0
#: The middle of a line of text, above its baseline.
_MIDDLE = 4.5
_HEAD = 7.0

_BLOCK = re.compile(r"^```text\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
#: An arrow, a time without an event, or a text with single spaces within.
_PART = re.compile(r"(?P<left>◀?)(?P<line>[─┄]{2,})(?P<right>▶?)|[^ ─┄◀▶]+(?: [^ ─┄◀▶]+)*")


def with_drawings(markdown: str) -> str:
    """Return a page with its timelines drawn."""
    return _BLOCK.sub(
        lambda block: svg(block["text"]) if is_timeline(block["text"]) else block[0], markdown
    )


def is_timeline(text: str) -> bool:
    """Return whether a text is a timeline: it has arrows, or times between two events."""
    return re.search(r"[▶◀]|─{3} ", text) is not None and "├" not in text


def svg(text: str) -> str:
    """Return the drawing of a timeline, which readers of screens get as its text."""
    lines = text.rstrip("\n").split("\n")
    width = (max(map(len, lines)) + 1) * _WIDTH
    height = len(lines) * _HEIGHT + _MIDDLE
    drawn = "".join(part for row, line in enumerate(lines) for part in _drawn(line, row))
    return (
        f'<div class="timeline"><svg viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img"><title>{escape(_told(lines))}</title>{drawn}</svg></div>'
    )


def _drawn(line: str, row: int) -> Iterator[str]:
    base = (row + 1) * _HEIGHT - _MIDDLE
    heads = row == 0 and "▶" not in line and "─" not in line
    for part in _PART.finditer(line):
        begin, end = part.start() * _WIDTH, part.end() * _WIDTH
        if part["line"] is None:
            kind = ' class="head"' if heads else ""
            # The length keeps the columns in any font.
            yield (
                f'<text x="{begin:g}" y="{base:g}" textLength="{end - begin:g}"{kind}>'
                f"{escape(part[0])}</text>"
            )
            continue
        kind = ' class="wait"' if "┄" in part["line"] else ""
        middle = base - _MIDDLE
        yield f'<line x1="{begin:g}" y1="{middle:g}" x2="{end:g}" y2="{middle:g}"{kind}/>'
        if part["right"]:
            yield _head(end, middle, -_HEAD)
        if part["left"]:
            yield _head(begin, middle, _HEAD)


def _head(tip: float, middle: float, back: float) -> str:
    """Return the head of an arrow that points from `back` to its tip."""
    points = f"{tip:g},{middle:g} {tip + back:g},{middle - 4:g} {tip + back:g},{middle + 4:g}"
    return f'<polygon points="{points}"/>'


def _told(lines: list[str]) -> str:
    """Return a timeline as sentences."""
    rows = (" ".join(map(_word, _PART.finditer(line))) for line in lines)
    return "; ".join(row for row in rows if row)


def _word(part: re.Match[str]) -> str:
    if part["line"] is None:
        return part[0]
    return "to" if part["right"] else "from" if part["left"] else "then"
