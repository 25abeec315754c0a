"""The figures of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from sample_app.lab.crew import Visit
from sample_app.lab.plan import Plan


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


def document(plan: Plan, visits: Sequence[Visit], outcome: Outcome) -> dict[str, Any]:
    """Return a run as JSON, for programs and for later display."""
    return {
        "plan": dataclasses.asdict(plan),
        "outcome": dataclasses.asdict(outcome),
        "visits": [dataclasses.asdict(visit) for visit in visits],
    }
