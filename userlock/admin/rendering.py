"""Render facts: as a table or fields of text, as a document for JSON, as cells of a page.

A noun (locks, jobs, requests, …) has one mapping of facts, from which each renderer takes what it
shows. A `Moment` is in RFC 3339 in a document, in local time on a terminal, in UTC on a page.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from userlock.words import escaped, span

Facts = dict[str, Any]
#: Writes a moment, in seconds since 1970, for people.
Write = Callable[[float], str]


class Moment(float):
    """A moment, in seconds since 1970."""


class Column(NamedTuple):
    """A column of a table whose rows are facts. `key`: the name of the fact."""

    key: str
    title: str
    kind: str = "text"  # or `code`, `count`, `duration` (in seconds, or in words), `moment`
    most: int | None = None  # characters of a cell on a terminal
    sparse: bool = False  # left out where it would be empty in all rows

    def text(self, row: Facts) -> str:
        value = row.get(self.key)
        if value is None or isinstance(value, str):
            return escaped(value or "")
        forms = {"count": "{:,}".format, "duration": span, "moment": utc}
        return forms.get(self.kind, str)(value)

    def short(self, row: Facts) -> str:
        text = self.text(row)
        cut = self.most is not None and len(text) > self.most
        return f"{text[: self.most]}…" if cut else text


#: Whose a row is, in an app with tenants.
NAMESPACE = Column("namespace", "Namespace", sparse=True)


def filled(columns: Iterable[Column], rows: Sequence[Facts]) -> list[Column]:
    """Return the columns without the sparse ones that are empty in all rows."""
    return [each for each in columns if not each.sparse or any(map(each.text, rows))]


def table(columns: Iterable[Column], rows: Sequence[Facts]) -> list[str]:
    columns = filled(columns, rows)
    lines = [[each.title.upper() for each in columns]]
    lines += [[each.short(row) for each in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    sides = [">" if each.kind in ("count", "duration") else "<" for each in columns]
    form = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return [form.format(*line).rstrip() for line in lines]


def labelled(facts: Facts, labels: Sequence[str], write: Write) -> dict[str, str]:
    """Return facts in words, by labels (names with spaces for `_`), without empty ones."""
    words = {label: _in_words(facts.get(label.replace(" ", "_")), write) for label in labels}
    return {label: text for label, text in words.items() if text}


def _in_words(value: Any, write: Write) -> str:
    match value:
        case None:
            return ""
        case Moment():
            return write(value)
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(value)
        case {"text": str(text), "at": Moment() as at}:
            return f"{write(at)}\n{text}"
    return str(value)


def fields(facts: Mapping[str, str], size: int = 12) -> list[str]:
    """Return facts by their labels, with the further lines of each below it, all escaped."""
    return [
        f"  {label if number == 0 else '':{size}} {escaped(line)}"
        for label, text in facts.items()
        for number, line in enumerate(text.split("\n"))
    ]


def document(value: Any) -> Any:
    """Return facts for JSON, which lacks moments, infinities and NaN. Foreign records have both."""
    match value:
        case Moment():
            return timestamp(value)
        case float():
            return round(value, 6) if math.isfinite(value) else None
        case Mapping():
            return {key: document(each) for key, each in value.items()}
        case list() | tuple():
            return [document(each) for each in value]
    return value


def timestamp(wall: float) -> str | None:
    """Return a moment for programs: RFC 3339, in UTC."""
    try:
        moment = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc(wall: float) -> str:
    return (timestamp(wall) or "?")[:19].replace("T", " ") + " UTC"


def time_of_day(wall: float) -> str:
    """Return a moment in local time, with the date if that is not today."""
    try:
        moment = datetime.datetime.fromtimestamp(wall).astimezone()
        today = datetime.datetime.now().astimezone().date()
    except (OverflowError, OSError, ValueError):
        return "?"
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")


def local(now: float) -> Write:
    """Return a function that writes a moment in local time, and how far from now it is."""

    def write(at: float) -> str:
        return f"{time_of_day(at)}, {span(abs(now - at))} {'ago' if at <= now else 'from now'}"

    return write
