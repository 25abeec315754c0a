"""Report violations: an event for each, a log line for each put site, and counts.

In a roll-out (`enforcement="log"`) one forgotten lock may be seen a thousand
times a minute. Each violation is an event, for metrics. Only the first one of
its put site is logged; `violations()` gives the counts.

The pytest plugin decides here which put sites are tolerated, and which files
are test code, whose puts only arrange data.
"""

from __future__ import annotations

import contextvars
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from userlock.callsite import CallSite
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import UserLockError, WriteViolation
from userlock.events import LISTENERS, Violation
from userlock.fork import reset_in_child


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SiteReport:
    """The number of violations at one put site.

    Attributes:
        violation: the name of the error class.
        kind: the kind of the entities.
        put_at: the call site of the first put or delete.
        read_at: the call site of the first read; empty if the entity was new or deleted, or if
            call sites of reads are not captured.
        count: the number of violations since this process began.
        since: the time of the first one, in seconds since 1970.
    """

    violation: str
    kind: str
    put_at: str
    read_at: str
    count: int
    since: float


#: The number of `testing.allow_unlocked` blocks around the running code.
unlocked_blocks: contextvars.ContextVar[int] = contextvars.ContextVar(
    "userlock_unlocked_blocks", default=0
)


class Reports:
    """The violations of one process. Thread-safe.

    Args:
        clock: gives the time of the first violation of a site.

    Attributes:
        tolerates: tells whether a violation that would be raised is let pass. None: none is.
        is_test_code: tells whether puts from a file are unchecked and unfenced. None: none are.
        checks: whether writes are checked at all. Off in a test that is marked so.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.tolerates: Callable[[WriteViolation], bool] | None = None
        self.is_test_code: Callable[[str], bool] | None = None
        self.checks = True
        self._clock = clock
        self._sites: dict[Any, SiteReport] = {}
        self._new_mutex()
        reset_in_child(self._new_mutex)  # another thread may have it at a fork

    def _new_mutex(self) -> None:
        self._mutex = threading.RLock()  # the garbage collector may end a block at any time

    def report(self, violation: WriteViolation, *, enforced: bool) -> bool:
        """Count a violation and emit its event.

        Args:
            violation: the violation.
            enforced: whether to raise it, unless it is tolerated.

        Returns:
            Whether to raise it.
        """
        if enforced and self.tolerates is not None and self.tolerates(violation):
            enforced = False
        count = self.count(violation, violation.kind, violation.put_at, violation.read_at)
        LISTENERS.emit(Violation(violation.lock_id, violation, enforced, count))
        return enforced

    def arranges(self, place: CallSite | None) -> bool:
        """Return whether a call site is in test code, which only arranges data."""
        return self.is_test_code is not None and place is not None and self.is_test_code(place.file)

    def count(self, error: UserLockError, kind: str, put_at: object, read_at: object) -> int:
        """Count an error at a put site. Return the number of errors of that site so far."""
        name = type(error).__name__
        site = name, kind, (put_at.file, put_at.function) if isinstance(put_at, CallSite) else None
        with self._mutex:
            # Text only: the error would keep its traceback alive, and so the frames.
            report = self._sites.get(site) or SiteReport(
                violation=name,
                kind=kind,
                put_at=str(put_at or "not known"),
                read_at=str(read_at or ""),
                count=0,
                since=self._clock.wall(),
            )
            self._sites[site] = dataclasses.replace(report, count=report.count + 1)
        return report.count + 1

    def summary(self) -> list[SiteReport]:
        """Return every site so far, the most frequent first."""
        with self._mutex:
            return sorted(self._sites.values(), key=lambda site: (-site.count, site.put_at))

    def reset(self) -> None:
        """Forget all sites. The next violation of each site is logged again."""
        with self._mutex:
            self._sites.clear()


#: The reports of this process.
REPORTS = Reports()


def violations() -> list[SiteReport]:
    """Return the put sites whose writes slipped past their lock in this process, with counts.

    The most frequent site comes first. With `enforcement="log"` each site is logged
    only once, and these are the counts. Use it for a status page, or for a log
    line at the end of a worker's life:

        for site in userlock.violations():
            log.info("%s x%d at %s", site.violation, site.count, site.put_at)
    """
    return REPORTS.summary()
