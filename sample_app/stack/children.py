"""Child processes: started, awaited until they answer, and always stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_TETHER = Path(__file__).with_name("tether.py")
_POLL_SECONDS = 0.02

#: Long enough for a busy machine. A child that fails to start reports it much sooner.
START_SECONDS = 60.0


class ChildDied(Exception):
    """A child ended, or did not answer in time. The message contains its last output."""


class Child:
    """One child process, the leader of a session of its own, with its output in a file.

    Ctrl-C in the terminal does not reach its own session, so that the children are stopped in
    order. On Linux it gets SIGTERM when the thread that started it ends, for whatever reason. So
    start children from a thread that lives long enough.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        answers: Callable[[], bool],
        log_file: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_file = log_file
        self._answers = answers
        self._env = dict(os.environ if env is None else env)
        self._cwd = cwd
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process without waiting until it answers. Output is appended to the log."""
        if self.running:
            raise RuntimeError(f"{self.name} is already running")
        tether = [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid()), self._user or "-"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*tether, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return the process id of the last start."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Return whether the process exists (it may not answer yet)."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code as in `subprocess`, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_until_it_answers(self, timeout: float = START_SECONDS) -> None:
        """Poll until it answers; raise `ChildDied` if it ends or takes too long."""
        deadline = time.monotonic() + timeout
        while True:
            if not self.running:
                raise ChildDied(f"{self.name} ended early ({self._how_it_ended()}).{self._said()}")
            if self._answers():
                return
            if time.monotonic() > deadline:
                raise ChildDied(f"{self.name} did not answer within {timeout:g} s.{self._said()}")
            time.sleep(_POLL_SECONDS)

    def report_of_death(self) -> str:
        """Return one line about its end, and its last output."""
        return f"{self.name} ended ({self._how_it_ended()}).{self._said()}"

    def kill(self) -> None:
        """Send SIGKILL to the process alone and wait for its end. Its own children remain."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, grace_seconds: float = 5.0) -> None:
        """Send SIGTERM, and after the grace period SIGKILL to the rest of its group."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        # Poll without reaping: until it is reaped, its process group id cannot be reused. The
        # signal below therefore reaches only its children.
        deadline = time.monotonic() + grace_seconds
        while not _has_exited(process.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def restart(self) -> None:
        """Stop it if it runs, start it again and wait until it answers."""
        self.stop()
        self.start()
        self.wait_until_it_answers()

    def child_pids(self) -> list[int]:
        """Return the process ids of its own children (gunicorn's workers). Linux only."""
        listing = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in listing.read_text().split()]

    def last_lines(self, count: int = 15) -> list[str]:
        """Return the end of its output."""
        with contextlib.suppress(FileNotFoundError):
            return self.log_file.read_text(errors="replace").splitlines()[-count:]
        return []

    def _said(self) -> str:
        lines = self.last_lines()
        if not lines:
            return " It had no output."
        return "\nIts last output:\n" + "\n".join(f"    {line}" for line in lines)

    def _how_it_ended(self) -> str:
        code = self.exit_code
        if code is not None and code < 0:
            return signal.Signals(-code).name
        return f"exit code {code}"


def _has_exited(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
