"""The terminal, or what stands in its place: what is read, written, and how wide it may be."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from userlock.clock import SYSTEM_CLOCK, Clock

_COLOURS = {"ok": "32", "warning": "33", "wrong": "31;1"}


def _size_of_terminal() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns, size.lines


@dataclasses.dataclass
class Console:
    """The streams that a command reads and writes.

    Attributes:
        stdin, stdout, stderr: as in `sys`.
        environ: the environment.
        clock: for the time, and for waiting between samples.
        size: columns and lines of the terminal, as they are now.
    """

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    clock: Clock = SYSTEM_CLOCK
    size: Callable[[], tuple[int, int]] = _size_of_terminal

    @classmethod
    def of_process(cls) -> Console:
        """This process's own."""
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character must not end the command.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        return cls(
            sys.stdin or _nothing("r"),
            sys.stdout or _nothing("w"),
            sys.stderr or _nothing("w"),
            os.environ,
        )

    @property
    def can_ask(self) -> bool:
        """Return whether somebody can answer a question."""
        return self.stdin.isatty()

    @property
    def live(self) -> bool:
        """Return whether the output can be overwritten."""
        return self.stdout.isatty() and self.environ.get("TERM", "dumb") != "dumb"

    @property
    def columns(self) -> int:
        """Return the maximum line width. Output to a file or a pipe is not cut."""
        if self.stdout.isatty() or self.environ.get("COLUMNS"):
            return self.size()[0]
        return 1000

    def say(self, text: str = "") -> None:
        """One or several lines of the answer."""
        self.stdout.write(text + "\n")
        self.stdout.flush()

    def note(self, text: str, *, end: str = "\n") -> None:
        """Write a remark that is not part of the answer."""
        self.stderr.write(text + end)
        self.stderr.flush()

    def document(self, document: Mapping[str, Any]) -> None:
        """A JSON document, on one line: nothing in it can do anything to a terminal."""
        self.say(json.dumps(_finite(document), ensure_ascii=True, allow_nan=False))

    def coloured(self, word: str) -> str:
        """A verdict, coloured where that can be seen."""
        if not self.live or self.environ.get("NO_COLOR"):
            return word
        return f"\x1b[{_COLOURS[word]}m{word}\x1b[0m"


def _nothing(mode: str) -> TextIO:
    return open(os.devnull, mode)  # type: ignore[return-value]  # noqa: PTH123


def _finite(value: Any) -> Any:
    """The same without infinities and NaN, which are no JSON; a foreign record may hold them."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


# --- text ---------------------------------------------------------------------------------------


def shown(text: str) -> str:
    """Text that others chose, safe for a terminal: what cannot be printed is escaped."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def width(text: str) -> int:
    """Return the number of terminal columns that a text needs."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """As much of it as fits, with a sign that there is more."""
    if width(text) <= columns:
        return text
    taken, room = "", columns - 1
    for char in text:
        room -= _columns(char)
        if room < 0:
            break
        taken += char
    return taken + "…"


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """Filled up with spaces."""
    blanks = " " * max(columns - width(text), 0)
    return blanks + text if right else text + blanks


def span(seconds: float) -> str:
    """Return a length of time, short: 0.4s, 12s, 3m20s, 2h05m, 4d03h; `?` for what is none."""
    if not math.isfinite(seconds) or seconds > 1e10:
        return "?"
    seconds = max(seconds, 0.0)
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


def time_of_day(wall: float) -> str:
    """Return a moment by the clock on the wall here, with the date if that is not today."""
    try:
        moment = datetime.datetime.fromtimestamp(wall).astimezone()
        today = datetime.datetime.now().astimezone().date()
    except (OverflowError, OSError, ValueError):
        return "?"
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")


# --- tables -------------------------------------------------------------------------------------


class Column:
    """A column of a table.

    Args:
        title: what stands above it.
        right: numbers.
        least: it may be cut down to so many columns; None: it may not be cut.
    """

    def __init__(self, title: str, *, right: bool = False, least: int | None = None) -> None:
        self.title = title
        self.right = right
        self.least = least


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], most: int) -> list[str]:
    """Return the lines of a table that is at most so wide, if that can be done.

    The widest of those columns that may be cut are cut first.
    """
    widths = [
        max([width(column.title), *(width(row[index]) for row in rows)])
        for index, column in enumerate(columns)
    ]
    room = most - 2 * (len(columns) - 1)
    while sum(widths) > room:
        wide = [
            (widths[index], index)
            for index, column in enumerate(columns)
            if column.least is not None and widths[index] > column.least
        ]
        if not wide:
            break
        widths[max(wide)[1]] -= 1
    lines = [[column.title for column in columns], *rows]
    return [
        "  ".join(
            padded(cut(cell, size), size, right=column.right)
            for cell, size, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    ]
