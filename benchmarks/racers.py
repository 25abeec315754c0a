"""Waiters in several processes that contend for one lock, and their records.

    every process     connects, takes and releases a lock of its own: ready
    begin_at          all threads of all processes begin
    opened_at         the window that counts begins
    closed_at         no new attempts; remaining waiters are served and release at once

The times are on the common clock and given beforehand, so all start together. Each waiter asks,
stays in the section, releases, thinks, and asks again. The section is a sleep until a deadline:
never shorter than planned. Its real length is recorded.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from random import Random

from benchmarks import locks
from benchmarks.contest import Contest, Diary, Refusal, Visit
from benchmarks.crew import Worker, all_do, gather
from benchmarks.peers import Client, Lock, TimedOut
from benchmarks.server import Server

LOCK_ID = "learner-1"
#: The time for which a waiter may still wait after the last new attempt.
PATIENCE_SECONDS = 15.0
_LEAD_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The durations of a contest, in seconds."""

    section: float
    most_think: float
    window: float
    warm_up: float


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a contest, on the common clock."""

    begin_at: float
    opened_at: float
    closed_at: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a contest, with its cost.

    Attributes:
        requests: requests that the server executed within the window.
        cpu_seconds: processor time of the waiters' processes within the window.
    """

    contest: Contest
    requests: int
    cpu_seconds: float


def run_contest(
    workers: list[Worker], kind: locks.Kind, server: Server, *, waiters: int, rules: Rules
) -> Outcome:
    """Let `waiters`, spread over the workers, contend for one lock.

    A worker with a waiter that is stuck is replaced by a new one.

    Raises:
        JobFailed: a worker could not even connect.
    """
    count = len(workers)
    threads = [waiters // count + (number < waiters % count) for number in range(count)]
    shared = [(kind.name, server.address, number, mine) for number, mine in enumerate(threads)]
    all_do(workers, get_ready, shared)
    begin_at = time.monotonic() + _LEAD_SECONDS
    opened_at = begin_at + rules.warm_up
    times = Times(begin_at, opened_at, opened_at + rules.window)
    for worker, (name, address, number, _) in zip(workers, shared, strict=True):
        worker.send(race, name, address, number, rules, times)
    sleep_until(times.opened_at)
    before = server.requests()
    sleep_until(times.closed_at)
    requests = server.requests() - before
    results: list[tuple[list[Diary], float]] = gather(workers)
    for index, (diaries, _) in enumerate(results):
        if any(diary.stuck for diary in diaries):
            workers[index].stop()
            workers[index] = Worker()
    return Outcome(
        Contest(
            times.opened_at,
            times.closed_at,
            [diary for diaries, _ in results for diary in diaries],
        ),
        requests,
        sum(cpu for _, cpu in results),
    )


# --- in the workers ---------------------------------------------------------------------------

_clients: dict[tuple[str, str], Client] = {}
_locks: list[Lock] = []


def client_of(name: str, address: str) -> Client:
    """Return this process's client, created at the first call."""
    client = _clients.get((name, address))
    if client is None:
        client = _clients[name, address] = locks.KINDS[name].connect(address)
    return client


def get_ready(name: str, address: str, number: int, threads: int) -> None:
    """Connect, run late imports, and create the lock objects."""
    client = client_of(name, address)
    warm_up = client.lock(f"warm-up-{number}")
    warm_up.acquire()
    warm_up.release()
    _locks[:] = [client.lock(LOCK_ID) for _ in range(threads)]


def race(
    name: str, address: str, number: int, rules: Rules, times: Times
) -> tuple[list[Diary], float]:
    """Run this process's waiters. Return their records, and the processor time of the window."""
    runners = [
        _Runner(lock, rules, times, Random(number * 1000 + index))
        for index, lock in enumerate(_locks)
    ]
    for runner in runners:
        runner.start()
    sleep_until(times.opened_at)
    began = time.process_time()
    sleep_until(times.closed_at)
    cpu = time.process_time() - began
    return [runner.record(times.closed_at + PATIENCE_SECONDS) for runner in runners], cpu


class _Runner:
    """One waiter: a thread with its record."""

    def __init__(self, lock: Lock, rules: Rules, times: Times, random: Random) -> None:
        self._lock = lock
        self._rules = rules
        self._times = times
        self._random = random
        self._diary = Diary()
        self._asked_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def record(self, at_the_latest: float) -> Diary:
        """Return the record, when the thread is done or `at_the_latest`."""
        self._thread.join(max(0.0, at_the_latest - time.monotonic()))
        if self._thread.is_alive():
            diary = self._diary
            stuck = Diary(list(diary.visits), list(diary.refusals), stuck=True)
            stuck.refusals.append(Refusal(self._asked_at, time.monotonic()))
            return stuck
        return self._diary

    def _run(self) -> None:
        sleep_until(self._times.begin_at)
        try:
            while (now := time.monotonic()) < self._times.closed_at:
                self._asked_at = now
                self._visit(now)
                if self._rules.most_think:
                    time.sleep(self._random.uniform(0, self._rules.most_think))
        except Exception as error:
            self._diary.error = f"{type(error).__name__}: {error}"

    def _visit(self, asked_at: float) -> None:
        try:
            confirmed = self._lock.acquire()
        except TimedOut:
            self._diary.refusals.append(Refusal(asked_at, time.monotonic()))
            return
        granted_at = time.monotonic()
        if not confirmed:
            raise RuntimeError("acquire returned a degraded lease")
        if granted_at < self._times.closed_at:
            sleep_until(granted_at + self._rules.section)
        self._diary.visits.append(Visit(asked_at, granted_at, time.monotonic()))
        self._lock.release()


def sleep_until(moment: float) -> None:
    """Sleep until this time on the monotonic clock; never less."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(left)
