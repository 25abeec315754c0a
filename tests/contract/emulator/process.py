"""The command `python -m userlock_emulator`, in this process and as a child process."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from unittest import mock

from userlock_emulator.cli import main

ROOT = Path(__file__).resolve().parents[3]
_EXPORT = "export DATASTORE_EMULATOR_HOST="


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "userlock_emulator", *arguments]


def run_to_end(
    *arguments: str, running: Callable[[str], object] = lambda said: None
) -> subprocess.CompletedProcess[str]:
    """Run a command in this process. An emulator is stopped after `running(what it has said)`."""
    out, err = io.StringIO(), io.StringIO()
    stop = mock.Mock(wait=lambda: running(out.getvalue()))
    code: Any
    with (
        mock.patch("userlock_emulator.serve.StopSignal", return_value=stop),
        mock.patch("logging.basicConfig"),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main(arguments)
        except SystemExit as exit_:
            code = exit_.code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def refused(completed: subprocess.CompletedProcess[str], *texts: str) -> None:
    """Assert that a command has failed with one line that has these texts."""
    assert (completed.returncode, completed.stdout) == (2, "")
    (line,) = completed.stderr.splitlines()
    for text in texts:
        assert text in line


class EmulatorProcess:
    def __init__(self, *arguments: str, port: int = 0) -> None:
        self.process = subprocess.Popen(
            command(*arguments, "--port", str(port)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": ""},
        )
        assert self.process.stdout is not None
        # Returns when the emulator serves, or with nothing if it has died.
        self.first_line = self.process.stdout.readline().rstrip("\n")
        self.host = self.first_line.removeprefix(_EXPORT)

    def stop(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        return self.process.wait(20)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
