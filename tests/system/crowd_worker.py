"""One process of a crowd at a lock: `python -m tests.system.crowd_worker CONFIG` (JSON).

Says "ready" on its standard output, begins when it reads a line, and says
"done" at its end. Each attempt is written down as soon as it has ended, so
that a process that is killed leaves what it knew.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from pathlib import Path
from random import Random

import userlock.stores  # noqa: F401  (not all of userlock: many begin at once)
from tests.history import Attempt
from userlock.clock import SystemClock
from userlock.errors import LockServiceUnavailable, LockTimeout
from userlock.events import Contended, Event, Listeners
from userlock.lock.policy import LockPolicy
from userlock.lock.service import LockService
from userlock.stores.registry import open_store

#: A sleep that lasts so much longer than asked for, in seconds, is a pause of the process: those
#: behind may take it for dead.
_PAUSE_SECONDS = 0.1


@dataclasses.dataclass(kw_only=True)
class Config:
    """What a process of the crowd does. Times in seconds, from 0 to so much, drawn evenly.

    Attributes:
        url: of the store.
        lock_id: which lock.
        name: for the history.
        out: where the history goes.
        threads: how many, each with attempts of its own.
        batch: how many of them are batch.
        attempts: how many in each thread; None for as many as come until `seconds` are over.
        seconds: for how long to begin new ones.
        thinks: before each attempt.
        holds: how long it works under the lock.
        at_least: how long it does so at least.
        wait_timeout: for how long each attempt waits.
        lock_timeout: of each lease.
    """

    url: str
    lock_id: str
    name: str
    out: str
    threads: int = 1
    batch: int = 0
    attempts: int | None = 1
    seconds: float = 3600.0
    thinks: float = 0.0
    holds: float = 0.0
    at_least: float = 0.0
    wait_timeout: float = 30.0
    lock_timeout: float = 60.0


class _Clock(SystemClock):
    """Notices when the process, or the thread, was not let run."""

    def __init__(self, present: threading.local) -> None:
        self._present = present

    def sleep(self, seconds: float) -> None:
        began = time.monotonic()
        time.sleep(seconds)
        if time.monotonic() - began > seconds + _PAUSE_SECONDS:
            attempt = getattr(self._present, "attempt", None)
            if attempt is not None:
                attempt.excused = True


class Worker:
    """See the module."""

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
        end = time.monotonic() + self._config.seconds
        threads = [
            threading.Thread(target=self._work, args=(number, end))
            for number in range(self._config.threads)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("done", flush=True)

    def _note(self, event: Event) -> None:
        if isinstance(event, Contended):
            self._present.attempt.stood = time.monotonic()

    def _work(self, number: int, end: float) -> None:
        config = self._config
        random = Random(f"{config.name}/{number}")
        batch = number >= config.threads - config.batch
        done = 0
        while time.monotonic() < end and done != config.attempts:
            if config.thinks:
                time.sleep(random.uniform(0, config.thinks))
            self._attempt(f"{config.name}/{number}", batch, random)
            done += 1

    def _attempt(self, who: str, batch: bool, random: Random) -> None:
        config = self._config
        attempt = Attempt(config.lock_id, who, batch, time.monotonic(), config.wait_timeout)
        self._present.attempt = attempt
        try:
            lease = self._service.acquire(
                config.lock_id,
                wait_timeout=config.wait_timeout,
                lock_timeout=config.lock_timeout,
                priority="batch" if batch else "interactive",
                request=who,
            )
        except (LockTimeout, LockServiceUnavailable) as error:
            attempt.gave_up = time.monotonic()
            # Without the store's answer there is no order.
            attempt.excused |= isinstance(error, LockServiceUnavailable)
        else:
            attempt.granted = time.monotonic()
            hold = random.uniform(config.at_least, max(config.holds, config.at_least))
            time.sleep(hold)
            attempt.released = time.monotonic()
            self._service.release(lease, held_seconds=hold)
        with self._mutex:
            self._out.write(json.dumps(dataclasses.asdict(attempt)) + "\n")
            self._out.flush()


if __name__ == "__main__":
    Worker(Config(**json.loads(sys.argv[1]))).run()
