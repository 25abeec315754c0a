"""The outbox: the cost of staging, the delay of a job, jobs a second, and a poisoned owner.

Against the Datastore emulator in a process of its own, with the lock in memory. The engine is one
of threads of this process, so the figures are those of rows, relay and worker; a real engine adds
its own delay. Staging is compared within each round with the same transaction without a job, and
with one that calls the engine after the commit, which loses jobs.

"Relay alone": all messages of the fast path are lost, and one relay looks every 0.1 s.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from google.cloud import ndb

import userlock
from benchmarks import emulated
from benchmarks.figures import Measurement, Section, Table, compared, percentile
from benchmarks.runner import Contender, interleave, repeat
from userlock.outbox import EngineError, Outbox, Wake
from userlock.outbox.engines.inline import InlineEngine
from userlock.outbox.relay import Relay
from userlock.outbox.waking import Waker
from userlock.stores import MemoryStore

BASELINE = "get and put"
_RELAY_SECONDS = 0.1
_THREADS = 8
_PATIENCE_SECONDS = 900.0


class BenchLearner(userlock.UserModel):
    """Written by the measured transactions."""

    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)


def run(*, quick: bool) -> Section:
    """Measure; about four minutes, or 15 seconds if `quick`."""
    userlock.configure(service=userlock.LockService(MemoryStore()))
    with tempfile.TemporaryDirectory() as folder, emulated.datastore(Path(folder)):
        client = ndb.Client()
        staging = _staging(client, rounds=5 if quick else 60)
        emulated.reset()
        tables = (
            staging,
            _round_trips(client),
            _latency(client, jobs=20 if quick else 300),
            _throughput(client, jobs=60 if quick else 1_000),
            _poisoned(client, owners=60 if quick else 10_000),
        )
    return Section(
        name="outbox",
        title="The outbox",
        method=(
            "The emulator in a process of its own; locks in memory; an engine of "
            f"{_THREADS} threads. Round trips are counted at the client."
        ),
        tables=tables,
    )


# --- staging ------------------------------------------------------------------------------------


def _staging(client: Any, rounds: int) -> Table:
    outbox = Outbox(_Silent(), client=client)
    job = outbox.job(name="bench")(lambda user_id, number: None)
    owners = (f"learner-{number}" for number in itertools.count())

    def change(jobs: int) -> None:
        owner = next(owners)

        def work() -> None:
            learner = BenchLearner.get_by_id(owner) or BenchLearner(id=owner)
            learner.points += 1
            learner.put()
            for number in range(jobs):
                job.stage(owner, number)

        with client.context(), userlock.global_lock(owner):
            ndb.transaction(work)

    ways = {BASELINE: 0, "and stage 1 job": 1, "and stage 10 jobs": 10}
    contenders = [
        Contender(name=name, operations=repeat(partial(change, jobs)))
        for name, jobs in ways.items()
    ]
    times = interleave(contenders, rounds=rounds, operations=5)
    trips = [
        Measurement(
            contender=name,
            metric="round trips",
            value=emulated.round_trips(client, partial(change, jobs)),
            unit="count",
            samples=1,
        )
        for name, jobs in ways.items()
    ]
    return Table(
        title="A transaction",
        measurements=(
            *compared(times, metric="transaction", baseline=BASELINE, added=True),
            *trips,
        ),
    )


class _Silent:
    """An engine that takes messages, and delivers none."""

    def connect(self, deliver: Callable[[str], object]) -> None:
        pass

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        return [None] * len(messages)

    def close(self) -> None:
        pass


class _LosesTheFirst(InlineEngine):
    """Threads that get the messages of the relay only."""

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        of_the_relay = timeout > 1
        return super().wake(messages, timeout) if of_the_relay else [None] * len(messages)


# --- latency and throughput ---------------------------------------------------------------------


class _Jobs:
    """An outbox whose one job notes when it was staged and when it ran."""

    def __init__(self, client: Any, engine: Any) -> None:
        self.outbox = Outbox(engine, client=client)
        self.lags: list[float] = []
        self._all_done = threading.Event()
        self._wanted = 0
        self.job = self.outbox.job(name="bench")(self._run)
        self.poison = self.outbox.job(name="poison")(self._fail)

    def _run(self, user_id: str, staged_at: float) -> None:
        self.lags.append(time.monotonic() - staged_at)
        if len(self.lags) >= self._wanted:
            self._all_done.set()

    @staticmethod
    def _fail(user_id: str) -> None:
        raise ValueError("poisoned")

    def stage(self, owners: Sequence[str]) -> None:
        """Stage a job for each owner, and expect them."""
        self._all_done.clear()
        self._wanted += len(owners)
        for owner in owners:
            self.job.stage_now(owner, time.monotonic())

    def wait(self) -> None:
        """Wait until all of them have run."""
        if not self._all_done.wait(_PATIENCE_SECONDS):
            raise TimeoutError(f"{len(self.lags)} of {self._wanted} jobs have run")


@contextlib.contextmanager
def _relays(jobs: _Jobs, count: int) -> Iterator[None]:
    """Run relays beside, each on its own, every 0.1 s."""
    over = threading.Event()

    def relay() -> None:
        mine = Relay("", Waker({"": jobs.outbox.engines[0]}, userlock.clock.SYSTEM_CLOCK), _CLOCK)
        while not over.is_set():
            with jobs.outbox.context():
                mine.run_once(seconds=5)
            over.wait(_RELAY_SECONDS)

    threads = [threading.Thread(target=relay) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


_CLOCK = userlock.clock.SYSTEM_CLOCK


def _latency(client: Any, jobs: int) -> Table:
    found: list[Measurement] = []
    ways: list[tuple[str, Any, int]] = [
        ("fast path", InlineEngine(_THREADS), 0),
        ("relay alone", _LosesTheFirst(_THREADS), 1),
    ]
    for name, engine, relays in ways:
        measured = _Jobs(client, engine)
        with client.context(), _relays(measured, relays):
            for number in range(jobs):
                measured.stage([f"{name}-{number}"])
                measured.wait()
        measured.outbox.close()
        found += _percentiles(name, measured.lags)
    return Table(title="From staged to run, one job at a time", measurements=tuple(found))


def _percentiles(name: str, lags: Sequence[float]) -> list[Measurement]:
    return [
        Measurement(
            contender=name,
            metric=f"p{percent}",
            value=percentile(lags, percent) * 1e3,
            unit="ms",
            samples=len(lags),
        )
        for percent in (50, 99)
    ]


def _round_trips(client: Any) -> Table:
    """Count the requests of one job, from its staging in a commit of its own to its removal."""
    outbox = Outbox(_Silent(), client=client)
    jobs = {
        "a job": outbox.job(name="plain")(lambda user_id: None),
        "transactional=True": outbox.job(name="within", transactional=True)(lambda user_id: None),
        "owner=None": outbox.job(name="of-nobody", owner=None)(lambda user_id: None),
    }
    with client.context():
        found = [each for name, job in jobs.items() for each in _trips(client, outbox, name, job)]
    return Table(title="Round trips to Datastore of one job", measurements=tuple(found))


def _trips(client: Any, outbox: Outbox, name: str, job: Any) -> Iterator[Measurement]:
    outbox.run(job.stage_now(name).key)  # the server is asked once what it can do
    staged: list[str] = []

    def stage() -> None:
        staged.append(job.stage_now(name).key)

    for step, action in (("staged", stage), ("run", lambda: outbox.run(staged[0]))):
        value = emulated.round_trips(client, action)
        yield Measurement(contender=name, metric=step, value=value, unit="round trips")


def _throughput(client: Any, jobs: int) -> Table:
    found: list[Measurement] = []
    for relays in (1, 4):
        measured = _Jobs(client, _LosesTheFirst(_THREADS))
        owners = [f"throughput-{relays}-{number}" for number in range(jobs)]
        with client.context():
            measured.stage(owners)
        began = time.monotonic()
        with _relays(measured, relays):
            measured.wait()
        seconds = time.monotonic() - began
        measured.outbox.close()
        found.append(
            Measurement(
                contender=f"{relays} {'relay' if relays == 1 else 'relays'}",
                metric="jobs",
                value=jobs / seconds,
                unit="per second",
                samples=jobs,
            )
        )
    return Table(title=f"{jobs:,} jobs of as many owners", measurements=tuple(found))


def _silence() -> None:
    """Keep the failures that are meant out of the output."""
    logging.getLogger("userlock").setLevel(logging.CRITICAL)


def _poisoned(client: Any, owners: int) -> Table:
    """Return the lags of owners, with and without one whose first job fails."""
    found: list[Measurement] = []
    for name, poisoned in (("none poisoned", False), ("one poisoned", True)):
        measured = _Jobs(client, InlineEngine(_THREADS))
        others = [f"{name}-{number}" for number in range(owners)]
        with client.context():
            if poisoned:
                _silence()
                measured.poison.stage_now("poisoned")
                for _ in range(20):
                    measured.job.stage_now("poisoned", 0.0)
            measured.stage(others)
            measured.wait()
        measured.outbox.close()
        found += _percentiles(name, measured.lags)
    return Table(title=f"{owners:,} owners, a job each", measurements=tuple(found))
