"""Read and write the streams of a command; facts as lines of text."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from userlock.admin.tables import Column
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.words import span


@dataclasses.dataclass
class Console:
    """The streams that a command reads and writes.

    Attributes:
        stdin, stdout, stderr: as in `sys`.
        environ: the environment.
        clock: for the time, and for waiting between samples.
    """

    stdin: TextIO
    stdout: TextIO
    stderr: TextIO
    environ: Mapping[str, str]
    clock: Clock = SYSTEM_CLOCK

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

    def say(self, text: str) -> None:
        """Write lines of the answer."""
        self.stdout.write(f"{text}\n")
        self.stdout.flush()

    def ask(self, question: str) -> str:
        """Ask on standard error; return the answer."""
        self.note(question, end="")
        answer = self.stdin.readline()
        if not answer.endswith("\n"):
            self.note("")  # the input has ended
        return answer.strip()

    def agrees(self, question: str) -> bool:
        """Ask; return whether the answer is yes."""
        return self.ask(f"{question} [y/N] ").lower() in ("y", "yes")

    def note(self, text: str, *, end: str = "\n") -> None:
        """Write a remark that is not part of the answer."""
        self.stderr.write(text + end)
        self.stderr.flush()

    def document(self, document: Mapping[str, Any]) -> None:
        """Write a JSON document on one line of ASCII, harmless to a terminal."""
        self.say(json.dumps(_finite(document), ensure_ascii=True, allow_nan=False))


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


def table(columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of a table, with a heading."""
    lines = [[each.title.upper() for each in columns]]
    lines += [[each.short(row) for each in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return ["  ".join(map(_padded, line, widths, columns)).rstrip() for line in lines]


def _padded(text: str, size: int, column: Column) -> str:
    return text.rjust(size) if column.right else text.ljust(size)


def fields(facts: Mapping[str, str], size: int = 12) -> list[str]:
    """Return facts by their labels, with the further lines of each below it."""
    return [
        f"  {label if number == 0 else '':{size}} {line}"
        for label, text in facts.items()
        for number, line in enumerate(text.split("\n"))
    ]
