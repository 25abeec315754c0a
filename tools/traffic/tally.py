"""What is counted, each thing as often as it stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from tools.traffic.line import Served
from tools.traffic.profile import DAY_SECONDS

#: The day in parts of ten minutes; the busiest of them is the peak.
PARTS = 144
PART_SECONDS = DAY_SECONDS / PARTS


@dataclasses.dataclass(slots=True)
class Tally:
    """Sums over users.

    Attributes:
        users: of these, all that are counted here stand for.
        requests: that people sent.
        locks: of them, those that took the lock.
        waited: of those, the ones that did not get it at once.
        timed_out: of those, the ones that never got it.
        waits: of those that waited: for how long, in seconds, and how many each stands for.
        operations: that memcached was sent, by the part of the day.
        locks_by_part: locks that people asked for, by the part of the day.
        visits: of the nightly sweep.
        visits_waited: of those, the ones that did not get the lock at once.
        visits_failed: of those, the ones that never got it.
        yields: how often the sweep let people pass.
        expected_waits: how many visits are to be expected to wait, wherever in its time the sweep
            comes to a user. They are rare at night, and a sample of visits would hold none.
        expected_yields: how often it is to be expected to let people pass; a little too often,
            since those who come together pass together.
        sweep_seconds: from its asking for a lock to its having left it, in all.
        record_seconds: for how long memcached had a record, in all.
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
        """Count what became of one user's arrivals, `weight` times."""
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
        """Count in what another one has counted."""
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
        """Of people's locks, those that were not free."""
        return self.waited / self.locks if self.locks else 0.0

    @property
    def longest_wait(self) -> float:
        """The longest wait that was counted, in seconds."""
        return max(self.waits, default=(0.0, 0.0))[0]

    def wait_quantile(self, share: float) -> float:
        """Of those that waited, this share waited for so long at most, in seconds."""
        below = 0.0
        for seconds, weight in sorted(self.waits):
            below += weight
            if below >= share * self.waited:
                return seconds
        return self.longest_wait
