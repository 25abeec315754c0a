"""The outbox of a process: its jobs, whose effects and runs are recorded, and its workers.

A job appends its id to its user's ledger. So the ledger has the number of effects of each job, and
their order in Datastore, whatever the clocks say.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from google.api_core import exceptions as google_errors
from google.cloud import ndb

import userlock
from tests.chaos.mail import Mailbox
from tests.chaos.models import JOBS, Ledger, unfinished_jobs
from tests.chaos.record import Recorder
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.scope import current_scope
from userlock.outbox import Job, Outbox, Retry, relay, worker

#: Of a job's claim. Some jobs, and some pauses of processes, take longer.
CLAIM_SECONDS = 2.0
#: The attempts of a job, and of one that always fails.
ATTEMPTS, FEW_ATTEMPTS = 12, 2
#: Failures of a job that never succeeds.
FOR_EVER = 1_000_000
_IDLE_SECONDS = 0.05
#: Wall clocks of the run may have been two days ahead.
_AHEAD_SECONDS = 3 * 86_400.0
_HOUR = 3600.0
#: The rounds of settling without a run, after which nothing more is to be expected.
_MOST_IDLE_ROUNDS = 4


class JobFails(Exception):
    """The failure of a job that is to fail."""


class Ahead:
    """A clock whose wall clock is ahead, by any number of seconds."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.now = clock.now
        self.sleep = clock.sleep
        self.seconds = seconds

    def wall(self) -> float:
        return self._clock.wall() + self.seconds


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of job: see `Outbox.job`."""

    transactional: bool
    ordered: bool = True
    attempts: int = ATTEMPTS


KINDS: Mapping[str, Kind] = {
    "plain": Kind(transactional=False),
    "transactional": Kind(transactional=True),
    "unordered": Kind(transactional=True, ordered=False),
    "poisoned": Kind(transactional=False, attempts=FEW_ATTEMPTS),
    "poisoned-transactional": Kind(transactional=True, attempts=FEW_ATTEMPTS),
}


class _Last(threading.local):
    """The last moment before the present claim of this thread: steady clock, wall clock."""

    staging = ""
    claimed_after = seen = (0.0, 0.0)


class Jobs:
    """The outbox of a process.

    Args:
        ahead: how far the wall clock is ahead of the service's, in seconds.
        random: the faults of its mailbox; None: there are none.
    """

    def __init__(
        self,
        client: ndb.Client,
        service: userlock.LockService,
        recorder: Recorder,
        folder: Path,
        name: str,
        ahead: float,
        random: Random | None,
    ) -> None:
        self.clock = Ahead(service.clock, ahead)
        self._client = client
        self._recorder = recorder
        self._name = name
        self._mailbox = Mailbox(folder / "mail", random)
        self._failures = folder / "failures"
        self._failures.mkdir(exist_ok=True)
        self._numbers = itertools.count(1)
        self._ran = 0
        self._last = _Last()
        self._sleep = time.sleep
        self.outbox = Outbox(
            self._mailbox,
            client=client,
            service=service,
            claim_seconds=CLAIM_SECONDS,
            clock=self.clock,
        )
        self.of_kind: Mapping[str, Job[..., None]] = {
            name: self._job(name, kind) for name, kind in KINDS.items()
        }

    def _job(self, name: str, kind: Kind) -> Job[..., None]:
        retry = Retry(attempts=kind.attempts, first_seconds=0.05, most_seconds=1.0)

        def run(user: str, staging: str, pause: float, failures: int) -> None:
            with self._recorded(user, staging):
                if kind.transactional:
                    _append(user, staging)
                self._sleep(pause)
                if self._is_to_fail(staging, failures):
                    raise JobFails
                if not kind.transactional:
                    ndb.transaction(lambda: _append(user, staging))

        job = self.outbox.job(
            name=f"{JOBS}{name}",
            retry=retry,
            transactional=kind.transactional,
            ordered=kind.ordered,
        )
        return job(run)

    def _is_to_fail(self, staging: str, failures: int) -> bool:
        """Return whether this run is among the first ones, of all processes."""
        if not failures:
            return False
        with (self._failures / staging).open("a") as file:
            file.write(".")
        return (self._failures / staging).stat().st_size <= failures

    def _recorded(self, user: str, staging: str) -> _Run:
        last = self._last
        if last.staging != staging:  # and not the same claim's transaction once more
            last.staging, last.claimed_after = staging, last.seen
        scope = current_scope()
        tenure = None if scope is None else scope.held.get(user)
        number = f"{self._name}/{next(self._numbers)}"
        self._recorder.note(
            "run",
            number=number,
            id=staging,
            who=self._name,
            wall=self.clock.wall(),
            claimed_after=last.claimed_after,
            locked=tenure is not None and not tenure.degraded,
        )
        return _Run(self._recorder, number, self._saw)

    def _saw(self) -> None:
        self._last.seen = (SYSTEM_CLOCK.now(), self.clock.wall())

    # --- workers ----------------------------------------------------------------------------

    def deliver(self, stopped: Callable[[], bool]) -> None:
        """Deliver messages."""
        while not stopped():
            if not self.deliver_one():
                time.sleep(_IDLE_SECONDS)

    def deliver_one(self) -> bool:
        """Deliver a message. Returns whether there was one."""
        key = self._mailbox.take()
        if key is None:
            return False
        self._last.staging = ""
        self._saw()
        try:
            outcome = self.outbox.run(key).value
            self._ran += outcome == "ran"
        except (userlock.UserLockError, google_errors.GoogleAPIError) as error:
            outcome = type(error).__name__
        self._recorder.note("delivered", outcome=outcome)
        return True

    def relay(self, stopped: Callable[[], bool]) -> None:
        """Relay."""
        self.outbox.relay_until(stopped)

    def settle(self) -> None:
        """Relay and run, with the clock set ahead, as long as there is anything to run."""
        self._sleep = lambda _: None
        self.clock.seconds = _AHEAD_SECONDS
        self._mailbox.clear()  # the relay asks again for what is left
        idle = 0
        while idle < _MOST_IDLE_ROUNDS and self._unfinished():
            before = self._ran
            self.clock.seconds += _HOUR
            self.outbox.relay()
            while self.deliver_one():
                pass
            idle = 0 if self._ran > before else idle + 1

    def _unfinished(self) -> bool:
        with self._client.context():
            return bool(unfinished_jobs())


class _Run:
    """The record of a run, from its begin to its end."""

    def __init__(self, recorder: Recorder, number: str, ended: Callable[[], None]) -> None:
        self._recorder = recorder
        self._number = number
        self._ended = ended

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        error = "" if kind is None else kind.__name__
        self._recorder.note("ran", number=self._number, error=error)
        self._ended()


def _append(user: str, staging: str) -> None:
    ledger = Ledger.of(user)
    ledger.done = [*ledger.done, staging]
    ledger.put()


def hasten() -> None:
    """Shorten the pauses and leases of this process's outbox, for good."""
    short: Mapping[Any, Mapping[str, Any]] = {
        relay: {
            "LEASE_SECONDS": 1.5,
            "_AGAIN_SECONDS": (0.5, 1.0, 2.0),
            "IDLE_SECONDS": (0.2, 1.0),
        },
        worker: {"_BUSY_WAITS": (1.0, 0.0), "_BUSY_PAUSES": (0.1, 0.5), "_RUNNING_PAUSE": 1.0},
    }
    for module, times in short.items():
        for name, seconds in times.items():
            mock.patch.object(module, name, seconds).start()
