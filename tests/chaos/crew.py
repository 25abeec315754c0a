"""The processes of a run. A killed one leaves its records and is replaced."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.findings import Finding, Kind
from tests.chaos.harms import PROCESS_KILLED, PROCESS_STOPPED
from tests.chaos.programs import MIXES
from tests.chaos.record import Recorder
from tests.chaos.worker import SETTLER, Config

_ROOT = Path(__file__).parents[2]
#: The skews of their wall clocks, one after the other.
_SKEWS = (1.0, 0.0, -1.0, 0.5)
#: How far the wall clocks of their outboxes are ahead, in seconds. The first two are so close that
#: their claims exclude each other.
_AHEAD = (2.0, 3.0, -3.0, 0.5, -1.5)
#: The length of a process's last output that is kept.
_SAID_CHARACTERS = 4000


class _Member:
    """One process."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._said = Path(config.out) / f"{config.name}.err"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", json.dumps(vars(config))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                cwd=_ROOT,
                text=True,
            )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        ready = self.process.stdout.readline() == "ready\n"
        assert ready, f"a process did not start:\n{self.said()}"

    def go(self, seconds: float) -> None:
        """Let it begin. It is ready."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.close()

    def said(self) -> str:
        return self._said.read_text(errors="replace")[-_SAID_CHARACTERS:]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


class Crew:
    """Several processes, each with programs of its own. Use `gathered`. Thread-safe.

    Attributes:
        notes: the files with the records of all processes, killed ones included.
    """

    def __init__(self, config: Config, stack: ExitStack) -> None:
        self.notes: list[Path] = []
        self._config = config
        self._stack = stack
        self._members: list[_Member] = []
        self._mutex = threading.Lock()
        self._settler: _Member | None = None

    def enlist(self, mix: str, threads: int, outage: str) -> _Member:
        """Start another process, which will soon be ready. See `Config`."""
        with self._mutex:
            config = dataclasses.replace(
                self._config,
                name=f"{mix.replace(', ', '-').replace(' ', '-')}-{len(self.notes)}",
                mix=mix,
                threads=threads,
                outage=outage,
                skew=_SKEWS[len(self.notes) % len(_SKEWS)],
                ahead=_AHEAD[len(self.notes) % len(_AHEAD)],
            )
            member = self._start(config)
            self._members.append(member)
        return member

    def _start(self, config: Config) -> _Member:
        self.notes.append(config.notes)
        member = _Member(config)
        self._stack.callback(member.close)
        return member

    def enlist_settler(self) -> None:
        """Start the process that does the work that is left at the end. No fault harms it."""
        config = dataclasses.replace(self._config, name=SETTLER, mix=SETTLER, threads=0)
        self._settler = self._start(config)

    def wait_until_ready(self) -> None:
        """Wait for the processes that were started last."""
        for member in self._members:
            member.wait_until_ready()
        if self._settler is not None:
            self._settler.wait_until_ready()

    def go(self, seconds: float) -> None:
        """Let all processes begin; they begin new operations for this time."""
        for member in self._members:
            member.go(seconds)

    def kill(self, whom: float, recorder: Recorder, until: float) -> None:
        """Kill a process. Another one replaces it until then (`time.monotonic`).

        The first process is never killed: leaks in it have the whole run to show.

        Args:
            whom: the process, as a share of all, from 0 to below 1.
        """
        with self._mutex:
            member = self._members.pop(1 + int(whom * (len(self._members) - 1)))
        config = member.config
        with recorder.span(PROCESS_KILLED, who=config.name):
            member.close()
        new = self.enlist(config.mix, config.threads, config.outage)
        new.wait_until_ready()
        new.go(max(0.0, until - time.monotonic()))

    def stop(self, whom: float, recorder: Recorder, seconds: float) -> None:
        """Stop a process for this time; any of them. See `kill`."""
        with self._mutex:
            member = self._members[int(whom * len(self._members))]
        with recorder.span(PROCESS_STOPPED, who=member.config.name):
            os.kill(member.process.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(member.process.pid, signal.SIGCONT)

    def finish(self, patience: float) -> list[Finding]:
        """Wait for the remaining processes, then for the one that runs the jobs that are left.
        Return those with a wrong end.
        """
        findings = self._ends(self._members, patience)
        if self._settler is not None:
            self._settler.go(0.0)
            findings += self._ends([self._settler], patience)
        return findings

    @staticmethod
    def _ends(members: Sequence[_Member], patience: float) -> list[Finding]:
        deadline = time.monotonic() + patience
        findings = []
        for member in members:
            wrong = how_it_ended(member.process, deadline - time.monotonic())
            if wrong is not None:
                kind, how = wrong
                findings.append(Finding(kind, member.config.name, f"{how}\n{member.said()}"))
        return findings


def how_it_ended(process: subprocess.Popen[str], patience: float) -> tuple[Kind, str] | None:
    """Wait for the end of a process and return what is wrong with it, if anything."""
    try:
        code = process.wait(max(0.1, patience))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # it prints its position
        process.wait()
        return Kind.STUCK, "stuck at"
    return None if code == 0 else (Kind.CRASHED, f"exit code {code}")


@contextlib.contextmanager
def gathered(config: Config, members: Sequence[tuple[str, int, str]]) -> Iterator[Crew]:
    """Yield a crew that is ready to begin; end all its processes afterwards.

    Args:
        config: the common part of all configurations. Its `out` is the folder for the records.
    """
    with ExitStack() as stack:
        crew = Crew(config, stack)
        for mix, threads, outage in members:
            crew.enlist(mix, threads, outage)
        if any(MIXES[mix].leaves_work for mix, _, _ in members):
            crew.enlist_settler()
        crew.wait_until_ready()
        yield crew
