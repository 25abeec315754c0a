"""Processes that kill themselves at a point of their work, and what they have in common."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from tests.contract.emulator.process import ROOT, EmulatorProcess
from userlock.clock import SYSTEM_CLOCK


class Ahead:
    """The system's clock, with a wall clock that is set ahead."""

    now = staticmethod(SYSTEM_CLOCK.now)
    sleep = staticmethod(SYSTEM_CLOCK.sleep)

    def __init__(self) -> None:
        self.seconds = 0.0

    def wall(self) -> float:
        return SYSTEM_CLOCK.wall() + self.seconds


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> None:
    setattr(owner, name, lambda *_, **__: die())


def after(owner: Any, name: str) -> None:
    function = getattr(owner, name)
    static = isinstance(vars(owner)[name], staticmethod)

    def dies(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        die()

    setattr(owner, name, staticmethod(dies) if static else dies)


class App:
    """Processes of a program, with what they share.

    Args:
        program: its module, which gets the folder, a role and a point.
        folder: theirs.
        datastore: the emulator, in which they have a project of their own.
        facts: for the program, as the file `facts`.
    """

    def __init__(
        self, program: str, folder: Path, datastore: EmulatorProcess, **facts: object
    ) -> None:
        self._program = program
        self._folder = folder
        project = f"p-{uuid.uuid4().hex[:12]}"
        self._environ = {
            **os.environ,
            "DATASTORE_EMULATOR_HOST": datastore.host,
            "GOOGLE_CLOUD_PROJECT": project,
            "DATASTORE_DATASET": project,
        }
        (folder / "facts").write_text(json.dumps(facts))

    def run(self, role: str, point: str = "") -> subprocess.CompletedProcess[str]:
        """Run a process, to its end or to the point at which it dies."""
        points = [point] if point else []
        return subprocess.run(
            [sys.executable, "-m", self._program, str(self._folder), role, *points],
            cwd=ROOT,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=200,  # a killed transaction keeps its locks for a minute
            check=False,
        )

    def said(self, role: str) -> Any:
        """Run a process that succeeds; return the document that it prints last."""
        done = self.run(role)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
