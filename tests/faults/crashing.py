"""Processes that kill themselves at a point of their work, and what they have in common."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import userlock
from tests.contract.emulator.process import ROOT, EmulatorProcess
from userlock.clock import SYSTEM_CLOCK
from userlock.stores import MemoryStore


class Ahead:
    """The system's clock, with a wall clock that is set ahead."""

    now = staticmethod(SYSTEM_CLOCK.now)
    sleep = staticmethod(SYSTEM_CLOCK.sleep)

    def __init__(self) -> None:
        self.seconds = 0.0

    def wall(self) -> float:
        return SYSTEM_CLOCK.wall() + self.seconds


def configure(folder: Path) -> dict[str, Any]:
    """Give this process its locks; return the facts of its folder."""
    facts: dict[str, Any] = json.loads((folder / "facts").read_text())
    store: Any = (
        MemoryStore()  # of this process alone: nobody is kept out by it
        if facts["lock"] == "none"
        else userlock.LockService.from_url(facts["lock"]).store
    )
    policy = userlock.LockPolicy(heartbeat_lock_timeout=1.0)
    userlock.configure(service=userlock.LockService(store, policy=policy))
    return facts


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def before(owner: Any, name: str) -> None:
    assert name in vars(owner), f"{owner} has no {name} of its own: nothing would die there"
    setattr(owner, name, lambda *_, **__: die())


def after(owner: Any, name: str) -> None:
    function = getattr(owner, name)
    static = isinstance(vars(owner)[name], staticmethod)

    def dies(*args: Any, **kwargs: Any) -> None:
        function(*args, **kwargs)
        die()

    setattr(owner, name, staticmethod(dies) if static else dies)


class Ended(NamedTuple):
    """The end of a process: its exit code or -signal, and what it has printed."""

    returncode: int
    stdout: str
    stderr: str


#: Processes that are forked from one that has imported the program, which takes a second.
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.faults.idempotency.program"])


def _main(program: str, environ: dict[str, str], printed: list[Path], *args: Any) -> None:
    """Run a program's `main` in this new process."""
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environ)
    for stream, path in zip((sys.stdout, sys.stderr), printed, strict=True):
        with path.open("wb", buffering=0) as file:
            os.dup2(file.fileno(), stream.fileno())
    importlib.import_module(program).main(*args)


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

    def run(self, role: str, point: str = "") -> Ended:
        """Run a process, to its end or to the point at which it dies."""
        points = [point] if point else []
        printed = [self._folder / f"{uuid.uuid4().hex}.{name}" for name in ("out", "err")]
        process = _FORKED.Process(
            target=_main, args=(self._program, self._environ, printed, self._folder, role, *points)
        )
        process.start()
        process.join(200)  # a killed transaction keeps its locks for a minute
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{role} {point}: {[path.read_text() for path in printed]}")
        return Ended(process.exitcode, *(path.read_text() for path in printed))

    @contextlib.contextmanager
    def started(self, role: str, point: str) -> Iterator[subprocess.Popen[str]]:
        """Start a process that pauses at a point; it is killed at the end of the block."""
        with subprocess.Popen(
            [sys.executable, "-m", self._program, str(self._folder), role, point],
            cwd=ROOT,
            env=self._environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @staticmethod
    def wait_for_the_pause(process: subprocess.Popen[str]) -> None:
        """Wait until a process has stopped itself."""
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it has ended before its point"

    def said(self, role: str) -> Any:
        """Run a process that succeeds; return the document that it prints last."""
        done = self.run(role)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])
