"""Processes that execute commands, line by line (see `tests.system.rivals`)."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
#: Longer than any command takes.
_ANSWER_SECONDS = 60.0


class Rival:
    """One process.

    Args:
        name: its name.
    """

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.rivals", url, name],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # A hanging process is ended, and its answer is missed.
        self._watchdog = threading.Timer(_ANSWER_SECONDS, self._process.kill)
        self._watchdog.daemon = True
        self._watchdog.start()

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return its next answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.name} has ended without an answer"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, *words: object) -> dict[str, Any]:
        self.tell(*words)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Close its input: it releases its locks, and ends."""
        try:
            self._process.communicate(timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.kill()
        self._watchdog.cancel()


@contextlib.contextmanager
def rivals(url: str, *names: str) -> Iterator[list[Rival]]:
    """Yield the processes, each with an open connection."""
    started = [Rival(url, name) for name in names]
    try:
        for each in started:
            assert each.answer() == {"ready": each.name}
        yield started
    finally:
        for each in started:
            each.close()
