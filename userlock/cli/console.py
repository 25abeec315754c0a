"""Read and write a terminal: its streams, its width, and text that is safe to show on it."""

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

from userlock.admin.tables import Column
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.words import span

#: The parameters of the terminal's escape sequences.
STYLES = {"ok": "32", "warning": "33", "wrong": "31;1", "heading": "1"}

#: Shows a text in a style.
Paint = Callable[[str, str], str]


def unpainted(text: str, style: str) -> str:
    """Return the text as it is."""
    return text


def _terminal_size() -> tuple[int, int]:
    size = shutil.get_terminal_size()
    return size.columns, size.lines


@dataclasses.dataclass
class Console:
    """The streams that a command reads and writes.

    Attributes:
        stdin, stdout, stderr: as in `sys`.
        environ: the environment.
        clock: for the time, and for waiting between samples.
        size: returns the current columns and lines of the terminal.
    """

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    clock: Clock = SYSTEM_CLOCK
    size: Callable[[], tuple[int, int]] = _terminal_size

    @classmethod
    def of_process(cls) -> Console:
        """Return the console of this process."""
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character must not end the command.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        return cls(
            sys.stdin or _null("r"), sys.stdout or _null("w"), sys.stderr or _null("w"), os.environ
        )

    @property
    def can_ask(self) -> bool:
        """Return whether somebody can answer a question."""
        return self.stdin.isatty()

    @property
    def live(self) -> bool:
        """Return whether the output can be overwritten."""
        return self._draws(self.stdout)

    def _draws(self, stream: TextIO) -> bool:
        return stream.isatty() and self.environ.get("TERM", "dumb") != "dumb"

    @property
    def columns(self) -> int:
        """Return the maximum line width. Output to a file or a pipe is not cut."""
        if self.stdout.isatty() or self.environ.get("COLUMNS"):
            return self.size()[0]
        return 1000

    def say(self, text: str = "", *, clear: bool = False) -> None:
        """Write lines of the answer; with `clear` alone on the screen, if it can be cleared."""
        if clear and self.live:
            lines = text.split("\n")[: max(self.size()[1] - 1, 1)]
            # Written at once, each line cleared to its end, so that nothing flickers.
            text = "\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J"
        self.stdout.write(text + ("" if clear and self.live else "\n"))
        self.stdout.flush()

    def ask(self, question: str) -> str:
        """Ask on standard error; return the answer."""
        self.note(question, end="")
        answer = self.stdin.readline()
        if not answer.endswith("\n"):
            self.note("")  # the input has ended
        return answer.strip()

    def note(self, text: str, *, end: str = "\n") -> None:
        """Write a remark that is not part of the answer."""
        self.stderr.write(text + end)
        self.stderr.flush()

    def document(self, document: Mapping[str, Any]) -> None:
        """Write a JSON document on one line of ASCII, harmless to a terminal."""
        self.say(json.dumps(_finite(document), ensure_ascii=True, allow_nan=False))

    def paint(self, text: str, style: str) -> str:
        """Return a text for the answer, in a style if the terminal can show it."""
        return self._painted(text, style, self.stdout)

    def paint_note(self, text: str, style: str) -> str:
        """Return a text for a remark, in a style if the terminal can show it."""
        return self._painted(text, style, self.stderr)

    def _painted(self, text: str, style: str, stream: TextIO) -> str:
        if not self._draws(stream) or self.environ.get("NO_COLOR"):
            return text
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m"


def _null(mode: str) -> TextIO:
    return open(os.devnull, mode)  # type: ignore[return-value]  # noqa: PTH123


def _finite(value: Any) -> Any:
    """Return a value without infinities and NaN, which JSON lacks and foreign records may have."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


# --- text ---------------------------------------------------------------------------------------


def width(text: str) -> int:
    """Return the number of terminal columns that a text needs."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, columns: int) -> str:
    """Return a text cut to a width, with an ellipsis if something is missing."""
    if width(text) <= columns:
        return text
    taken, room = "", columns - 1
    for char in text:
        room -= _columns(char)
        if room < 0:
            break
        taken += char
    return taken + "…"


def time_of_day(wall: float) -> str:
    """Return a moment in local time, with the date if that is not today."""
    try:
        moment = datetime.datetime.fromtimestamp(wall).astimezone()
        today = datetime.datetime.now().astimezone().date()
    except (OverflowError, OSError, ValueError):
        return "?"
    return moment.strftime("%H:%M:%S" if moment.date() == today else "%Y-%m-%d %H:%M:%S")


def moment(at: float, wall: float) -> str:
    """Return a moment in local time, and how far from now it is."""
    return f"{time_of_day(at)}, {span(abs(wall - at))} {'ago' if at <= wall else 'from now'}"


# --- tables -------------------------------------------------------------------------------------


def table(
    columns: Sequence[Column],
    rows: Sequence[dict[str, Any]],
    most: int,
    paint: Paint = unpainted,
) -> list[str]:
    """Return the lines of a table, cut to a width of `most` if the columns allow it.

    The widest of the columns that may be cut is cut first. `paint` shows the heading.
    """
    lines = [[each.title.upper() for each in columns]]
    lines += [[each.text(row) for each in columns] for row in rows]
    widths = [max(map(width, cells)) for cells in zip(*lines, strict=True)]
    room = most - 2 * (len(columns) - 1)
    while sum(widths) > room:
        wide = [
            (size, index)
            for index, (size, column) in enumerate(zip(widths, columns, strict=True))
            if column.least is not None and size > column.least
        ]
        if not wide:
            break
        widths[max(wide)[1]] -= 1
    heading, *others = ("  ".join(map(_padded, line, widths, columns)).rstrip() for line in lines)
    return [paint(heading, "heading"), *others]


def _padded(text: str, size: int, column: Column) -> str:
    text = cut(text, size)
    blanks = " " * (size - width(text))
    return blanks + text if column.right else text + blanks


def fields(facts: Mapping[str, str], size: int = 12) -> list[str]:
    """Return facts by their labels, with the further lines of each below it."""
    return [
        f"  {label if number == 0 else '':{size}} {line}"
        for label, text in facts.items()
        for number, line in enumerate(text.split("\n"))
    ]
