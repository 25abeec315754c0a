"""Policies of the lock service: how to wait, and what to do when the store is down."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Iterator
from random import Random

from userlock.lock.lease import Priority, check_lock_timeout, check_wait_timeout


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Backoff:
    """How long to wait between two polls: short at first, growing, with jitter.

    Jitter keeps waiters from polling in step: each delay is drawn evenly from
    half of its nominal length to the whole.
    """

    first_seconds: float = 0.002
    growth: float = 1.5
    most_seconds: float = 0.025

    def __post_init__(self) -> None:
        if not (0 < self.first_seconds <= self.most_seconds < math.inf and self.growth >= 1):
            raise ValueError(
                f"a back-off needs 0 < first_seconds <= most_seconds and growth >= 1: {self}"
            )

    def delays(self, random: Random) -> Iterator[float]:
        """The delays to sleep, without end."""
        nominal = self.first_seconds
        while True:
            yield nominal * random.uniform(0.5, 1.0)
            nominal = min(nominal * self.growth, self.most_seconds)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PriorityPolicy:
    """What goes with a priority.

    Attributes:
        lock_timeout: length of the lease, in seconds.
        wait_timeout: longest wait for the lock, in seconds.
        backoff: the polling of a waiter.
    """

    lock_timeout: float = 60.0
    wait_timeout: float = 10.0
    backoff: Backoff = Backoff()

    def __post_init__(self) -> None:
        check_lock_timeout(self.lock_timeout)
        check_wait_timeout(self.wait_timeout)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LockPolicy:
    """The defaults that follow from who asks.

    Batch polls more slowly: it is in no hurry, and stands back anyway while a
    person waits.
    """

    interactive: PriorityPolicy = PriorityPolicy()
    batch: PriorityPolicy = PriorityPolicy(
        wait_timeout=60.0, backoff=Backoff(first_seconds=0.005, most_seconds=0.1)
    )

    def with_lock_timeout(self, seconds: float) -> LockPolicy:
        """The same with leases of another length, for both priorities."""
        return LockPolicy(
            interactive=dataclasses.replace(self.interactive, lock_timeout=seconds),
            batch=dataclasses.replace(self.batch, lock_timeout=seconds),
        )

    def of(self, priority: Priority) -> PriorityPolicy:
        """What goes with `priority`."""
        return self.batch if priority is Priority.BATCH else self.interactive


class OutagePolicy(enum.Enum):
    """What an acquire does when the lease store does not answer."""

    #: Carry on with a degraded lease: the site stays up, and fencing still
    #: refuses stale writes at the commit. The default, as in the 2016 design.
    OPTIMISTIC = "optimistic"
    #: Raise `LockServiceUnavailable`.
    FAIL = "fail"

    @classmethod
    def of(cls, value: OutagePolicy | str) -> OutagePolicy:
        """The policy named by a word; `ValueError` says which words there are."""
        try:
            return cls(value)
        except ValueError:
            raise ValueError(f"outage must be 'optimistic' or 'fail', not {value!r}") from None
