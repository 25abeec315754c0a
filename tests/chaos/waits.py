"""The order of service, and the punctuality of timeouts."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from tests.chaos.findings import Finding, Kind
from tests.chaos.history import Asked, Span
from tests.history import overtakings

#: The margin for a busy machine, in seconds.
_MARGIN_SECONDS = 1.0


class Waits:
    """The attempts at all locks.

    Args:
        troubles: times at which the store lost data, or was hard to reach. Order is not kept then.
        stops: times at which processes were stopped or killed.
        late_seconds: the delay of an attempt beyond its timeout that the store's timeouts may
            cause, as in docs/guarantees.md.

    Attributes:
        checked: number of undisturbed waits, whose order must have been kept.
        longest: the longest delay beyond a timeout, in seconds.
    """

    def __init__(
        self,
        attempts: Sequence[Asked],
        troubles: Sequence[Span],
        stops: Sequence[Span],
        late_seconds: float,
    ) -> None:
        self.checked = 0
        self.longest = 0.0
        self._attempts = attempts
        self._troubles = troubles
        self._stops = stops
        self._most_over = late_seconds + _MARGIN_SECONDS

    def findings(self) -> Iterator[Finding]:
        """Yield the errors."""
        for lock_id, group in itertools.groupby(sorted(self._attempts, key=_lock), _lock):
            mine = [self._as_seen(asked) for asked in group]
            self.checked += sum(a.queued is not None and not a.excused for a in mine)
            for passing, passed in overtakings(mine, ages_after=None):
                yield Finding(
                    Kind.OVERTAKEN,
                    passed.id,
                    f"{passing} had {lock_id} from {passing.granted:.4f} before {passed}",
                    lock_id,
                    passing.granted,
                )
        for asked in self._attempts:
            yield from self._late(asked)

    def _as_seen(self, asked: Asked) -> Asked:
        """Return the attempt for the check of order: a degraded one counts as not granted."""
        ended = asked.ended
        excused = asked.excused or ended is None or self._disturbed(asked, ended)
        if asked.degraded:
            return dataclasses.replace(asked, granted=None, failed=ended, excused=excused)
        return dataclasses.replace(asked, excused=excused)

    def _disturbed(self, asked: Asked, ended: float) -> bool:
        return any(
            span.affects(asked.lock_id) and span.meets(asked.began, ended)
            for span in self._troubles
        ) or any(span.who == asked.who and span.meets(asked.began, ended) for span in self._stops)

    def _late(self, asked: Asked) -> Iterator[Finding]:
        ended = asked.ended
        if ended is None:
            return  # its process was killed, or is a finding of its own
        stopped = _covered(
            [
                (max(span.began, asked.began), min(span.ended, ended))
                for span in self._stops
                if span.who in (None, asked.who) and span.meets(asked.began, ended)
            ]
        )
        over = asked.waited - asked.timeout - max(stopped, asked.overslept)
        self.longest = max(self.longest, over)
        if over > self._most_over:
            yield Finding(
                Kind.LATE,
                asked.id,
                f"waited for {asked.waited:.3f} s of {asked.timeout:g} for {asked.lock_id}, of "
                f"which its process was stopped for {stopped:.3f}",
                asked.lock_id,
                ended,
            )


def _covered(spans: list[tuple[float, float]]) -> float:
    """Return the total time that these spans cover."""
    covered, until = 0.0, -math.inf
    for began, ended in sorted(spans):
        covered += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return covered


def _lock(asked: Asked) -> str:
    return asked.lock_id
