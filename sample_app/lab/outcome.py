"""The figures of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sample_app.lab.crew import Visit
from sample_app.lab.plan import Plan
from sample_app.words import counted


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One run's figures. Times are in milliseconds, except `seconds`.

    Attributes:
        requests: number of requests.
        accepted: requests confirmed to the client.
        refused: requests refused (409).
        timed_out: requests whose wait for the lock timed out (503).
        failed: requests with any other status.
        stored: the final count.
        lost: lost updates: accepted, but not stored.
        retries: repeated runs of the critical section.
        degraded: requests with a degraded lease.
        seconds: from the first request to the last reply.
        per_second: accepted requests per second.
        wait_p50, wait_p99, wait_longest: wait until the final critical section began.
        interactive_p99, batch_p99: the same by priority; None without such requests.
    """

    requests: int
    accepted: int
    refused: int
    timed_out: int
    failed: int
    stored: int
    lost: int
    retries: int
    degraded: int
    seconds: float
    per_second: float
    wait_p50: float
    wait_p99: float
    wait_longest: float
    interactive_p99: float | None
    batch_p99: float | None

    @classmethod
    def of(cls, visits: Sequence[Visit], stored: int) -> Outcome:
        """Compute the figures of these visits."""
        waits = [visit.waited * 1000 for visit in visits]
        accepted = sum(visit.accepted for visit in visits)
        seconds = max(visit.ended for visit in visits) - min(visit.asked for visit in visits)
        by_status = [visit.status for visit in visits]
        return cls(
            requests=len(visits),
            accepted=accepted,
            refused=by_status.count(409),
            timed_out=by_status.count(503),
            failed=sum(status not in (200, 409, 503) for status in by_status),
            stored=stored,
            lost=accepted - stored,
            retries=sum(max(visit.attempts - 1, 0) for visit in visits),
            degraded=sum(visit.degraded for visit in visits),
            seconds=seconds,
            per_second=accepted / seconds if seconds else 0.0,
            wait_p50=_nearest(waits, 50),
            wait_p99=_nearest(waits, 99),
            wait_longest=max(waits),
            interactive_p99=_of(visits, batch=False),
            batch_p99=_of(visits, batch=True),
        )


def _of(visits: Sequence[Visit], *, batch: bool) -> float | None:
    waits = [visit.waited * 1000 for visit in visits if visit.batch is batch]
    return _nearest(waits, 99) if waits else None


def _nearest(values: Sequence[float], percent: int) -> float:
    """Return the percentile, by nearest rank."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]


def lost_visits(visits: Sequence[Visit], stored: int) -> list[bool]:
    """Return for each visit whether its update was accepted and then lost.

    Backwards from the stored count: that was written by the last one to write it, which had read
    one less, written by the last one before that read, and so on. The others were overwritten.
    """
    kept: set[int] = set()
    before = math.inf
    for count in range(stored, 0, -1):
        wrote = [
            (visit.ended <= before, visit.ended, number)
            for number, visit in enumerate(visits)
            if visit.accepted and visit.count == count
        ]
        if not wrote:
            break
        *_, number = max(wrote)
        kept.add(number)
        before = visits[number].began or before
    return [visit.accepted and number not in kept for number, visit in enumerate(visits)]


def verdict(outcome: Mapping[str, Any]) -> str:
    """Return the result of a run in one sentence, and what it cost in another."""
    accepted, lost = outcome["accepted"], outcome["lost"]
    if lost:
        first = (
            f"{lost:,} of {counted(accepted, 'accepted update')} "
            f"{'was' if lost == 1 else 'were'} lost: the counter says {outcome['stored']:,}."
        )
    elif accepted == 1:
        first = "No update was lost: the accepted one is in the counter."
    else:
        first = f"No update was lost: all {accepted:,} accepted ones are in the counter."
    others = [
        f"{counted(outcome[key], 'request')} {words}"
        for key, words in (
            ("refused", "refused"),
            ("timed_out", "timed out"),
            ("failed", "failed"),
            ("degraded", "without an answer from memcached"),
        )
        if outcome[key]
    ]
    price = f"The longest wait was {milliseconds(outcome['wait_longest'])}"
    return f"{first} {'; '.join([price, *others])}."


def milliseconds(value: float) -> str:
    """Return a time in the unit that people use: 215 ms, 4.9 s."""
    return f"{value:,.0f} ms" if value < 999.5 else f"{value / 1000:,.1f} s"


def document(
    plan: Plan, visits: Sequence[Visit], outcome: Outcome, killed_at: float | None = None
) -> dict[str, Any]:
    """Return a run as JSON, for programs and for later display.

    Args:
        plan: the plan of the run.
        visits: its requests.
        outcome: its figures.
        killed_at: the time when memcached was killed, on the visits' clock; None if it was not.
    """
    return {
        "plan": dataclasses.asdict(plan),
        "outcome": dataclasses.asdict(outcome),
        "killed_at": killed_at,
        "visits": [dataclasses.asdict(visit) for visit in visits],
    }
