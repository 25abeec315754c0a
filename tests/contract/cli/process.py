"""Run `python -m userlock …` as a process, with pipes or on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
#: The longest run of a process on a busy machine. Tests of speed measure by themselves.
#: A killed process's transaction keeps its locks for a minute.
SECONDS = 120


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        assert self.out.count("\n") == 1, (self.out, self.err)
        found: dict[str, Any] = json.loads(self.out)
        return found


class Cli:
    """Runs commands against one store."""

    def __init__(self, url: str, env: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.env = {**os.environ, **(env or {}), "USERLOCK_STORE": url, "TERM": "xterm"}

    def run(self, *arguments: str, env: Mapping[str, str] | None = None) -> Outcome:
        done = subprocess.run(
            command(*arguments),
            cwd=ROOT,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        out, err = done.stdout.decode(), done.stderr.decode()
        assert "Traceback" not in err, err
        return Outcome(done.returncode, out, err)

    def shell(self, line: str) -> Outcome:
        """Run a line of shell in which `userlock` is the command; its last line of output is
        the exit code of the first command in the pipe."""
        program = f'userlock() {{ {sys.executable} -m userlock "$@"; }}; {line}'
        done = subprocess.run(
            ["bash", "-c", f"{program}; echo ${{PIPESTATUS[0]}}"],
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        *out, code = done.stdout.splitlines()
        return Outcome(int(code), "\n".join(out), done.stderr)

    @contextlib.contextmanager
    def start(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            command(*arguments),
            cwd=ROOT,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def on_terminal(self, *arguments: str) -> Iterator[Screen]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            command(*arguments),
            cwd=ROOT,
            env=self.env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            with process:
                try:
                    yield Screen(process, ours)
                finally:
                    process.kill()
        finally:
            os.close(ours)


class Screen:
    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.text = ""
        self._descriptor = descriptor

    def read_until(self, words: str, times: int = 1) -> None:
        ends = time.monotonic() + SECONDS
        while self.text.count(words) < times:
            assert time.monotonic() < ends, self.text
            assert self._read(), self.text

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def end(self) -> int:
        while self._read():
            pass
        return self.process.wait(SECONDS)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], SECONDS)
        assert ready, self.text
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # how Linux says that the other end is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "userlock", *arguments]
