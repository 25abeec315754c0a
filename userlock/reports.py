"""Violations and warnings as they are told of: counted by site, each site logged once.

In a roll-out (`enforcement="log"`) one forgotten lock may be seen a thousand
times a minute. Every one of them is an event, for metrics; but only the first
of its site is a log line, and `violations()` says how many there were. So with
what is only warned of.

The tests' tools have two words to say here: which sites are known already and
tolerated, and which files are test code, whose puts only arrange data.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from typing import Any

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.errors import UserLockError, WriteViolation
from userlock.events import LISTENERS, Violation
from userlock.sites import Located


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SiteReport:
    """The number of violations at one put site.

    Attributes:
        violation: the name of the error class.
        kind: the kind of the entities.
        put_at: where they were put or deleted (or, if it is `StaleObjectUsed`, used), with the
            line of the first one.
        read_at: where the first one was read; empty if it was new or deleted, and where that is
            not captured.
        count: how often, since this process began.
        since: when the first was, in seconds since 1970.
    """

    violation: str
    kind: str
    put_at: str
    read_at: str
    count: int
    since: float


class Reports:
    """The violations of one process. Thread-safe.

    Args:
        clock: for the time of the first of a site.

    Attributes:
        tolerates: whether a violation that would be raised is to be let pass; None: none is.
        is_test_code: whether what is put from a file goes unchecked and unfenced; None: nothing
            does.
        checks: whether writes are checked at all. Not in a test that is marked so.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.tolerates: Callable[[WriteViolation], bool] | None = None
        self.is_test_code: Callable[[str], bool] | None = None
        self.checks = True
        self._clock = clock
        self._mutex = threading.Lock()
        self._sites: dict[Any, SiteReport] = {}

    def report(self, violation: WriteViolation, *, enforced: bool) -> bool:
        """Count a violation and tell of it.

        Args:
            violation: what happened.
            enforced: whether it is to be raised, unless it is tolerated.

        Returns:
            Whether to raise it.
        """
        if enforced and self.tolerates is not None and self.tolerates(violation):
            enforced = False
        count = self.count(violation, violation.kind, violation.put_at, violation.read_at)
        LISTENERS.emit(Violation(violation.lock_id, violation, enforced, count))
        return enforced

    def arranges(self, place: Located | None) -> bool:
        """Return whether a call site is in test code, which only arranges data."""
        tells = self.is_test_code
        return tells is not None and place is not None and tells(place.file)

    def count(self, error: UserLockError, kind: str, put_at: object, read_at: object) -> int:
        """Count what was seen at a put site; how many there have been, with this one."""
        name = type(error).__name__
        function = (put_at.file, put_at.function) if isinstance(put_at, Located) else None
        site = name, kind, function
        with self._mutex:
            seen = self._sites.get(site)
            if seen is None:
                # Words only: the error would keep its traceback, and that its frames.
                seen = SiteReport(
                    violation=name,
                    kind=kind,
                    put_at=str(put_at or "not known"),
                    read_at=str(read_at or ""),
                    count=0,
                    since=self._clock.wall(),
                )
            seen = self._sites[site] = dataclasses.replace(seen, count=seen.count + 1)
        return seen.count

    def summary(self) -> list[SiteReport]:
        """Return every site so far, the most frequent first."""
        with self._mutex:
            return sorted(self._sites.values(), key=lambda seen: (-seen.count, seen.put_at))

    def reset(self) -> None:
        """Forget what was seen: the next of each site is the first."""
        with self._mutex:
            self._sites.clear()

    def _after_fork(self) -> None:
        """A lock that another thread held at the fork would stay locked in the child."""
        self._mutex = threading.Lock()


#: This process's.
REPORTS = Reports()
os.register_at_fork(after_in_child=REPORTS._after_fork)


def violations() -> list[SiteReport]:
    """Return the put sites at which writes slipped past their lock in this process, and how often.

    The most frequent first. Also those of blind overwrites that went ahead
    (`EntityExistsError`), and of objects that were out of date. With
    `enforcement="log"` each site is logged only once; here is how often it was
    since. For a status page, or a log line at the end of a worker's life:

        for seen in userlock.violations():
            log.info("%s x%d at %s", seen.violation, seen.count, seen.put_at)
    """
    return REPORTS.summary()
