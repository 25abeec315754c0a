"""Outages: the time of an acquire when the server is gone, or does not answer.

    killed     SIGKILL: connections are reset, and new ones refused
    stopped    SIGSTOP: the kernel still accepts connections, but there is no reply;
               a hanging machine or a lost network looks the same
    continued  SIGCONT: the server replies again and executes the requests of the meantime

Each lock has a server and a process of its own, connected and used before. During the outage all
attempts are for one learner's lock, like a client that retries. After it, another learner's lock is
acquired first, and then the same one: a command that arrives late may still hold it. No attempt may
take longer than a cap, and a process that hangs is ended. A quick run's cap is too short for
redis-py's own timeout, so it shows a lower bound.
"""

from __future__ import annotations

import collections
import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks import locks, peers
from benchmarks.crew import Worker
from benchmarks.figures import Measurement, Section, Table
from benchmarks.server import Server

#: Beyond redis-py's own timeout of 5 s, so that the two differ.
CAP_SECONDS = 6.0
_QUICK_CAP_SECONDS = 2.0
_SAME, _ANOTHER = "learner-1", "learner-2"
_STOPPED_SECONDS = 1.5
_PAUSE_SECONDS = 0.005


class Answer(NamedTuple):
    """The result of one acquire.

    Attributes:
        began_at, ended_at: on the common monotonic clock, in seconds.
        how: `confirmed`, `degraded`, or the name of the error.
    """

    began_at: float
    ended_at: float
    how: str

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


@dataclass(slots=True)
class Findings:
    """The observations of one lock. Times in seconds; None means "longer than the cap"."""

    cap: float = CAP_SECONDS
    killed: list[float | None] = field(default_factory=list)
    first: list[float | None] = field(default_factory=list)
    following: list[float] = field(default_factory=list)
    back: list[float | None] = field(default_factory=list)
    same_back: list[float | None] = field(default_factory=list)
    how: dict[str, collections.Counter[str]] = field(default_factory=dict)

    def note(self, when: str, how: str) -> None:
        """Record the result of an attempt."""
        self.how.setdefault(when, collections.Counter())[how] += 1


def run(*, quick: bool) -> Section:
    """Measure; about 70 seconds, or 8 if `quick`."""
    rounds, cap = (1, _QUICK_CAP_SECONDS) if quick else (2, CAP_SECONDS)
    kinds = locks.present()
    findings: dict[str, Findings] = {}
    ours: list[_Case] = []
    others: list[_Case] = []
    for kind in kinds:
        for outage in ("optimistic", "fail") if kind.ours else (None,):
            name = kind.name if outage is None else f"{kind.name}, outage={outage!r}"
            found = findings[name] = Findings(cap)
            (ours if kind.ours else others).append(_Case(name, kind, outage, found))
    # Other locks mostly wait, and do so concurrently. Ours run alone, unless the run is quick.
    failures = _together([*ours, *others] if quick else others)
    for case in [] if quick else ours * rounds:
        _observe(case.kind, case.outage, case.findings)
    return Section(
        name="outage",
        title="Outages of the server",
        method=(
            f"Time of an acquire after the server is killed; of the first one after it is stopped "
            f"(SIGSTOP), and the median of those that follow for {_STOPPED_SECONDS:g} s; and from "
            "its continuation to the next confirmed grant, of another lock and of "
            "the same one. "
            f"Rounds of userlock: {rounds}, of which the longest counts; one of each other lock. "
            f"No attempt may take longer than {cap:g} s."
        ),
        tables=(
            Table(
                title="acquire",
                measurements=tuple(
                    figure
                    for name, found in findings.items()
                    for figure in measurements(name, found)
                ),
            ),
        ),
        notes=(
            *(described(name, found) for name, found in findings.items() if found.how),
            *failures,
            *locks.missing(),
        ),
    )


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    kind: locks.Kind
    outage: str | None
    findings: Findings


def _together(cases: list[_Case]) -> list[str]:
    """Observe all at once. Return the failures of other locks; raise a failure of ours."""
    failures = []
    with ThreadPoolExecutor(max_workers=len(cases) or 1) as pool:
        jobs = [
            (case, pool.submit(_observe, case.kind, case.outage, case.findings)) for case in cases
        ]
        for case, job in jobs:
            try:
                job.result()
            except Exception as error:
                if case.kind.ours:
                    raise
                failures.append(f"{case.name} failed: {type(error).__name__}: {error}")
    return failures


def measurements(contender: str, findings: Findings) -> Iterator[Measurement]:
    """Return the figures of one lock."""
    for metric, values in (
        ("killed", findings.killed),
        ("stopped: first", findings.first),
    ):
        yield from _longest(contender, metric, values, findings.cap)
    if findings.following:
        yield Measurement(
            contender=contender,
            metric="then median",
            value=statistics.median(findings.following) * 1000,
            unit="ms",
            samples=len(findings.following),
        )
    elif findings.first:
        yield from _longest(contender, "then median", [None], findings.cap)
    yield from _longest(contender, "server back", findings.back, findings.cap)
    yield from _longest(contender, "same lock back", findings.same_back, findings.cap)


def described(contender: str, findings: Findings) -> str:
    """Describe the results of one lock in words."""
    answers = "; ".join(
        f"{when}: " + ", ".join(f"{how} ({count})" for how, count in hows.most_common())
        for when, hows in findings.how.items()
    )
    return f"{contender}: {answers}."


def _longest(
    contender: str, metric: str, values: Sequence[float | None], cap: float
) -> Iterator[Measurement]:
    if not values:
        return
    known = [value for value in values if value is not None]
    capped = len(known) < len(values)
    yield Measurement(
        contender=contender,
        metric=metric,
        value=(cap if capped else max(known)) * 1000,
        unit="ms",
        samples=len(values),
        at_least=capped,
    )


def _observe(kind: locks.Kind, outage: str | None, findings: Findings) -> None:
    """Run one round: kill one server; stop and continue another one."""
    with locks.started(kind.store) as server, _connected(kind, outage, server) as worker:
        server.kill()
        answer = _attempt(worker, findings)
        findings.killed.append(None if answer is None else answer.seconds)
        findings.note("killed", _how(answer, findings))
    with locks.started(kind.store) as server, _connected(kind, outage, server) as worker:
        with server.stopped():
            hangs = not _while_stopped(worker, findings)
            continued_at = time.monotonic()
        if hangs:  # it can do nothing else until the attempt ends
            findings.same_back.append(_back(worker, _SAME, continued_at, findings, pending=True))
        findings.back.append(_back(worker, _ANOTHER, continued_at, findings))
        if not hangs:
            findings.same_back.append(_back(worker, _SAME, continued_at, findings))


def _while_stopped(worker: Worker, findings: Findings) -> bool:
    """Attempt to acquire from a stopped server. Return whether the last attempt ended."""
    answer = _attempt(worker, findings)
    findings.first.append(None if answer is None else answer.seconds)
    findings.note("stopped", _how(answer, findings))
    until = time.monotonic() + _STOPPED_SECONDS
    while answer is not None and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
        answer = _attempt(worker, findings)
        findings.note("stopped", _how(answer, findings))
        findings.following.append(findings.cap if answer is None else answer.seconds)
    return answer is not None


def _back(
    worker: Worker, lock_id: str, continued_at: float, findings: Findings, *, pending: bool = False
) -> float | None:
    """Return the time to a confirmed grant of this lock; None if longer than the cap.

    `pending`: an attempt is already running.
    """
    until = continued_at + findings.cap
    when = "continued" if lock_id == _ANOTHER else "continued, same lock"
    while (left := until - time.monotonic()) > 0:
        if not pending:
            worker.send(attempt, lock_id)
        pending = False
        if not worker.answered(left):
            break
        answer: Answer = worker.receive()
        findings.note(when, answer.how)
        if answer.how == "confirmed":
            return answer.ended_at - continued_at
        time.sleep(_PAUSE_SECONDS)
    findings.note(when, _how(None, findings))
    return None


def _attempt(worker: Worker, findings: Findings) -> Answer | None:
    """Run one acquire; return None if it takes longer than the cap."""
    worker.send(attempt, _SAME)
    if not worker.answered(findings.cap):
        return None
    answer: Answer = worker.receive()
    return answer


def _how(answer: Answer | None, findings: Findings) -> str:
    return f"nothing within {findings.cap:g} s" if answer is None else answer.how


@contextlib.contextmanager
def _connected(kind: locks.Kind, outage: str | None, server: Server) -> Iterator[Worker]:
    worker = Worker()
    try:
        worker.call(connect, kind.name, server.address, outage)
        yield worker
    finally:
        worker.stop()


# --- in the worker ----------------------------------------------------------------------------

_locks: dict[str, peers.Lock] = {}


def connect(name: str, address: str, outage: str | None) -> None:
    """Create the locks and use them a few times. `outage` is userlock's policy."""
    kind = locks.KINDS[name]
    if outage is None:
        client = kind.connect(address)
    else:
        scheme = "memcache" if kind.store is locks.Store.MEMCACHED else "redis"
        client = peers.userlock_on(scheme, outage=outage)(address)
    for lock_id in (_SAME, _ANOTHER):
        lock = _locks[lock_id] = client.lock(lock_id)
        for _ in range(3):
            lock.acquire()
            lock.release()


def attempt(lock_id: str) -> Answer:
    """Acquire, and release a granted lock."""
    lock = _locks[lock_id]
    began_at = time.monotonic()
    try:
        confirmed = lock.acquire()
    except Exception as error:
        return Answer(began_at, time.monotonic(), type(error).__name__)
    ended_at = time.monotonic()
    with contextlib.suppress(Exception):
        lock.release()
    return Answer(began_at, ended_at, "confirmed" if confirmed else "degraded")
