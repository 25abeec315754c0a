"""Columns in which facts are shown, on a terminal or on a page; moments and durations in them."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

from userlock.words import span


class Column(NamedTuple):
    """A column of a table whose rows are documents.

    Attributes:
        key: the name of the fact.
        title: the heading.
        kind: `text`, `code`, `count`, `duration` (in seconds, or in words) or `moment` (in
            seconds since 1970).
        most: the characters of a cell on a terminal; None: it is not cut.
    """

    key: str
    title: str
    kind: str = "text"
    most: int | None = None

    @property
    def right(self) -> bool:
        """Return whether the cells are aligned right."""
        return self.kind in ("count", "duration")

    def text(self, row: dict[str, Any]) -> str:
        """Return the cell of a row."""
        value = row.get(self.key)
        if value is None or isinstance(value, str):
            return value or ""
        match self.kind:
            case "count":
                return f"{value:,}"
            case "duration":
                return span(value)
            case "moment":
                return utc(value)
        return str(value)

    def short(self, row: dict[str, Any]) -> str:
        """Return the cell of a row as a terminal shows it."""
        text = self.text(row)
        if self.most is None or len(text) <= self.most:
            return text
        return f"{text[: self.most]}…"


def timestamp(wall: float) -> str | None:
    """Return a moment for programs: RFC 3339, in UTC."""
    try:
        moment = datetime.datetime.fromtimestamp(wall, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc(wall: float) -> str:
    """Return a moment for people, in UTC."""
    return (timestamp(wall) or "?")[:19].replace("T", " ") + " UTC"
