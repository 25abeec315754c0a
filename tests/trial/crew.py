"""The processes of a trial. One that is killed leaves what it has noted, and another comes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from tests.trial.worker import Config

_ROOT = Path(__file__).parents[2]


class Crew:
    """So many processes, each with a program of its own. Use `gathered`.

    Attributes:
        notes: the files with the notes of all, of those that were killed as well.
        killed: how many were.
    """

    def __init__(self, config: Config, stack: ExitStack) -> None:
        self.notes: list[Path] = []
        self.killed = 0
        self._config = config
        self._stack = stack
        self._processes: list[subprocess.Popen[str]] = []

    def enlist(self) -> None:
        """One more, that is ready to begin."""
        number = len(self.notes)
        notes = Path(self._config.out) / f"{number}.jsonl"
        config = dataclasses.replace(self._config, process=number, out=str(notes))
        process = self._stack.enter_context(_process(config))
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "a process did not start"
        self.notes.append(notes)
        self._processes.append(process)

    def go(self, seconds: float) -> None:
        """Let those begin that have not: they begin new operations for so long."""
        for process in self._processes:
            assert process.stdin is not None
            if not process.stdin.closed:
                process.stdin.write(f"{seconds}\n")
                process.stdin.close()

    def kill(self, random: Random) -> None:
        """Kill one of them."""
        process = self._processes.pop(random.randrange(len(self._processes)))
        process.kill()
        process.wait()
        self.killed += 1

    def finish(self, patience: float) -> Counter[str]:
        """Wait for those who are left; how many of their operations ended how.

        Args:
            patience: for how long to wait, in seconds.
        """
        operations: Counter[str] = Counter()
        for process in self._processes:
            assert process.wait(patience) == 0, "a process has failed"
            assert process.stdout is not None
            operations.update(json.loads(process.stdout.read()))
        return operations


@contextmanager
def gathered(config: Config, count: int) -> Iterator[Crew]:
    """A crew that is ready to begin; none of it is left afterwards.

    Args:
        config: of each, but for its number. Its `out` is the folder for their notes.
        count: how many there are.
    """
    with ExitStack() as stack:
        crew = Crew(config, stack)
        for _ in range(count):
            crew.enlist()
        yield crew


@contextmanager
def _process(config: Config) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.trial.worker", json.dumps(vars(config))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_ROOT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
