"""Read and write the streams of a command."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from userlock.admin.rendering import document
from userlock.clock import SYSTEM_CLOCK, Clock


@dataclasses.dataclass
class Console:
    """The streams of a command, as in `sys`; the environment; the clock, also for waiting."""

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

    def document(self, facts: Mapping[str, Any]) -> None:
        """Write facts as JSON on one line of ASCII, harmless to a terminal."""
        self.say(json.dumps(document(facts), ensure_ascii=True, allow_nan=False))


def _null(mode: str) -> TextIO:
    return open(os.devnull, mode)  # type: ignore[return-value]  # noqa: PTH123
