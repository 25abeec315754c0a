"""What was measured in a run, in figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from sample_app.lab.crew import Visit
from sample_app.lab.plan import Plan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One run's figures. Times in milliseconds, but for `seconds`.

    Attributes:
        requests: how many there were.
        accepted: whose clients were told that they were done.
        refused: whose clients were told that they were not (409).
        gave_up: that waited in vain (503).
        failed: any other answer.
        stored: what the counter says in the end.
        lost: accepted, and not stored: the sentence that this library is about.
        retries: how often a critical section ran again.
        degraded: how many ran without memcached's word.
        seconds: from the first request to the last answer.
        per_second: requests that were accepted, by the second.
        wait_p50, wait_p99, wait_longest: until the critical section began for good.
        people_p99, batch_p99: the same of each priority; None where there is none.
    """

    requests: int
    accepted: int
    refused: int
    gave_up: int
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
    people_p99: float | None
    batch_p99: float | None

    @classmethod
    def of(cls, visits: Sequence[Visit], stored: int) -> Outcome:
        """The figures of what was seen."""
        waits = [visit.waited * 1000 for visit in visits]
        accepted = sum(visit.accepted for visit in visits)
        seconds = max(visit.ended for visit in visits) - min(visit.asked for visit in visits)
        by_status = [visit.status for visit in visits]
        return cls(
            requests=len(visits),
            accepted=accepted,
            refused=by_status.count(409),
            gave_up=by_status.count(503),
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
            people_p99=_of(visits, batch=False),
            batch_p99=_of(visits, batch=True),
        )


def _of(visits: Sequence[Visit], *, batch: bool) -> float | None:
    waits = [visit.waited * 1000 for visit in visits if visit.batch is batch]
    return _nearest(waits, 99) if waits else None


def _nearest(values: Sequence[float], percent: int) -> float:
    """The percentile, by nearest rank."""
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]


def document(plan: Plan, visits: Sequence[Visit], outcome: Outcome) -> dict[str, Any]:
    """A run for programs, and to be shown again."""
    return {
        "plan": dataclasses.asdict(plan),
        "outcome": dataclasses.asdict(outcome),
        "visits": [dataclasses.asdict(visit) for visit in visits],
    }
