"""Weighted counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tools.traffic.lock import Served
from tools.traffic.profile import DAY_SECONDS

#: The number of parts of the day, ten minutes each. The busiest one is the peak.
PARTS = 144
PART_SECONDS = DAY_SECONDS / PARTS


@dataclasses.dataclass(slots=True)
class Tally:
    """Sums over users.

    Attributes:
        users: number of users that the counts represent.
        requests: number of users' requests.
        locks: number of requests that took the lock.
        waited: number of locks that were not free at first.
        timed_out: number of locks that were never granted.
        waits: lengths of these waits in seconds, each with its weight.
        operations: commands sent to memcached, by the part of the day.
        locks_by_part: locks of users' requests, by the part of the day.
        visits: visits of the nightly sweep.
        visits_waited: number of visits whose lock was not free at first.
        visits_failed: number of visits whose lock was never granted.
        yields: how often the sweep yielded to interactive requests.
        expected_waits: expected number of visits that wait, if the sweep comes to a user at a
            random time. They are rare at night, and a sample of visits would have none.
        expected_yields: expected number of yields. It is slightly too high, since
            simultaneous requests need only one yield.
        sweep_seconds: total time of the sweep's visits, from request to release.
        record_seconds: total lifetime of records in memcached.
    """

    users: float = 0.0
    requests: float = 0.0
    locks: float = 0.0
    waited: float = 0.0
    timed_out: float = 0.0
    waits: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    operations: list[float] = dataclasses.field(default_factory=lambda: [0.0] * PARTS)
    locks_by_part: list[float] = dataclasses.field(default_factory=lambda: [0.0] * PARTS)
    visits: float = 0.0
    visits_waited: float = 0.0
    visits_failed: float = 0.0
    yields: float = 0.0
    expected_waits: float = 0.0
    expected_yields: float = 0.0
    sweep_seconds: float = 0.0
    record_seconds: float = 0.0

    def count(self, served: Iterable[Served], weight: float) -> None:
        """Add the outcomes of one user's arrivals, `weight` times."""
        operations, locks = self.operations, self.locks_by_part
        for one in served:
            part = int(one.at / PART_SECONDS) % PARTS
            operations[part] += one.operations * weight
            if one.batch:
                self.visits += weight
                self.yields += one.yields * weight
                self.sweep_seconds += one.seconds * weight
                self.visits_waited += one.refused * weight
                self.visits_failed += (not one.granted) * weight
                continue
            self.locks += weight
            locks[part] += weight
            if one.refused:
                self.waited += weight
                self.waits.append((one.waited, weight))
                self.timed_out += (not one.granted) * weight

    def add(self, other: Tally) -> None:
        """Add another tally."""
        for field in dataclasses.fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if field.name == "waits":
                mine.extend(theirs)
            elif isinstance(mine, list):
                mine[:] = map(sum, zip(mine, theirs, strict=True))
            else:
                setattr(self, field.name, mine + theirs)

    @property
    def waiting_share(self) -> float:
        """Return the share of users' locks that were not free."""
        return self.waited / self.locks if self.locks else 0.0

    @property
    def longest_wait(self) -> float:
        """Return the longest wait, in seconds."""
        return max(self.waits, default=(0.0, 0.0))[0]

    def wait_quantile(self, share: float) -> float:
        """Return the wait that this share of the waits does not exceed, in seconds."""
        below = 0.0
        for seconds, weight in sorted(self.waits):
            below += weight
            if below >= share * self.waited:
                return seconds
        return self.longest_wait
