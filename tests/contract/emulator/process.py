"""The command `python -m userlock_emulator` as a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[3]
_EXPORT = "export DATASTORE_EMULATOR_HOST="


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "userlock_emulator", *arguments]


def run_to_end(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an emulator that does not start."""
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
    )


class EmulatorProcess:
    """A running emulator process, killed at the end of the block."""

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
        """Send a signal and return the exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(20)

    def __enter__(self) -> EmulatorProcess:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
