"""A crowd of real processes at one lock."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests import history
from tests.history import Attempt
from tests.system.crowd_worker import Config
from userlock import LockService

_ROOT = Path(__file__).resolve().parents[2]
_PATIENCE = 40.0


class Member:
    """One process of the crowd."""

    def __init__(self, config: Config) -> None:
        self.name = config.name
        self.out = Path(config.out)
        self.out.touch()
        self.killed = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.crowd_worker", json.dumps(vars(config))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n", f"{self.name} did not start"

    def go(self) -> None:
        """Let it begin."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.killed = True
        self._process.kill()
        self._process.wait()

    def finish(self) -> None:
        """Wait until it has ended."""
        if not self.killed:
            assert self._process.wait(_PATIENCE) == 0, f"{self.name} failed"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


class Crowd:
    """Processes at one lock of one memcached. Use `gathered`.

    Attributes:
        service: a service of this process, to read and to hold the lock.
    """

    def __init__(self, url: str, folder: Path, lock_id: str = "ann") -> None:
        self.lock_id = lock_id
        self.service = LockService.from_url(url, outage="fail")
        self.members: list[Member] = []
        self._url = url
        self._folder = folder

    def enlist(self, *names: str, **options: Any) -> list[Member]:
        """Start new members and wait until they are ready. See `Config` for the options."""
        new = [
            Member(
                Config(
                    url=self._url,
                    lock_id=self.lock_id,
                    name=name,
                    out=str(self._folder / f"{name}.jsonl"),
                    **options,
                )
            )
            for name in names
        ]
        self.members += new
        for member in new:
            member.wait_until_ready()
        return new

    def enqueue(self, *members: Member, each: int = 1) -> None:
        """Let them begin, one after the other, so that they queue in this order."""
        for member in members:
            before = len(self.service.waiters(self.lock_id))
            member.go()
            self.until(lambda: len(self.service.waiters(self.lock_id)) >= before + each)  # noqa: B023

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "not in time"
            time.sleep(0.002)

    def finish(self) -> list[Attempt]:
        """Wait for all of them; return the attempts, in the order of the grants."""
        for member in self.members:
            member.finish()
        attempts = history.read(member.out for member in self.members)
        return sorted(attempts, key=lambda a: a.granted or a.failed or 0.0)

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.service.close()


@contextlib.contextmanager
def gathered(url: str, folder: Path) -> Iterator[Crowd]:
    """Yield a crowd, whose processes are ended afterwards."""
    crowd = Crowd(url, folder)
    try:
        yield crowd
    finally:
        crowd.close()


def without_the_killed(attempts: list[Attempt], *killed: Member) -> list[Attempt]:
    """Return the attempts of the members that were not killed."""
    names = {member.name for member in killed}
    return [a for a in attempts if a.who.partition("/")[0] not in names]


def gaps(attempts: list[Attempt], since: float) -> list[float]:
    """Return the times for which the lock was free before each grant, in seconds."""
    free = []
    for attempt in attempts:
        assert attempt.granted is not None, f"{attempt} was not served"
        free.append(attempt.granted - since)
        assert attempt.released is not None
        since = attempt.released
    return free
