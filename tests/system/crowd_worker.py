"""One process of a crowd at a lock: `python -m tests.system.crowd_worker CONFIG` (JSON).

It prints "ready", begins when it reads a line, and prints "done" at its end. Each attempt is
recorded as soon as it has ended, so that a killed process leaves its records.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import userlock.stores  # noqa: F401  (not all of userlock: many begin at once)
from tests.history import Attempt
from userlock.clock import Signal, SystemClock
from userlock.errors import LockServiceUnavailable, LockTimeout
from userlock.events import Contended, Event, Listeners
from userlock.lock.policy import LockPolicy
from userlock.lock.service import LockService
from userlock.stores.registry import open_store

#: A sleep that takes so much longer than requested, in seconds, is a pause of the process: waiters
#: behind may take it for dead.
_PAUSE_SECONDS = 0.1


@dataclasses.dataclass(kw_only=True)
class Config:
    """The configuration of a process. Times are in seconds.

    Attributes:
        out: the file of the history.
        threads: number of threads, each with one attempt.
        holds: work time under the lock.
        wait_timeout: the longest wait of each attempt.
        lock_timeout: length of each lease.
    """

    url: str
    lock_id: str
    name: str
    out: str
    threads: int = 1
    holds: float = 0.0
    wait_timeout: float = 30.0
    lock_timeout: float = 60.0


class _Clock(SystemClock):
    """A clock that detects pauses of the process or the thread."""

    def __init__(self, present: threading.local) -> None:
        self._present = present

    def sleep(self, seconds: float) -> None:
        self._watched(time.sleep, seconds)

    def wait(self, signal: Signal, seconds: float) -> None:
        self._watched(signal.wait, seconds)

    def _watched(self, wait: Callable[[float], object], seconds: float) -> None:
        began = time.monotonic()
        wait(seconds)
        if time.monotonic() - began > seconds + _PAUSE_SECONDS:
            attempt = getattr(self._present, "attempt", None)
            if attempt is not None:
                attempt.excused = True


class Worker:
    """One process of a crowd: see the module."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._present = threading.local()
        self._out = Path(config.out).open("a")  # noqa: SIM115 (for as long as the process lives)
        self._mutex = threading.Lock()
        self._service = LockService(
            open_store(config.url),
            policy=LockPolicy(),
            outage="fail",
            listeners=Listeners([self._note]),
            clock=_Clock(self._present),
        )

    def run(self) -> None:
        print("ready", flush=True)
        sys.stdin.readline()
        threads = [
            threading.Thread(target=self._attempt, args=(f"{self._config.name}/{number}",))
            for number in range(self._config.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("done", flush=True)

    def _note(self, event: Event) -> None:
        if isinstance(event, Contended):
            self._present.attempt.queued = time.monotonic()

    def _attempt(self, who: str) -> None:
        config = self._config
        attempt = Attempt(config.lock_id, who, False, time.monotonic(), config.wait_timeout)
        self._present.attempt = attempt
        try:
            lease = self._service.acquire(
                config.lock_id,
                wait_timeout=config.wait_timeout,
                lock_timeout=config.lock_timeout,
                request=who,
            )
        except (LockTimeout, LockServiceUnavailable) as error:
            attempt.failed = time.monotonic()
            # Without a reply of the store there is no order.
            attempt.excused |= isinstance(error, LockServiceUnavailable)
        else:
            attempt.granted = time.monotonic()
            time.sleep(config.holds)
            attempt.released = time.monotonic()
            self._service.release(lease, held_seconds=config.holds)
        with self._mutex:
            self._out.write(json.dumps(dataclasses.asdict(attempt)) + "\n")
            self._out.flush()


if __name__ == "__main__":
    Worker(Config(**json.loads(sys.argv[1]))).run()
