"""Policies of the lock service: how to wait, and what to do when the store is down."""

from __future__ import annotations

import dataclasses
import enum

import userlock.lock.lease as leases
from userlock.arguments import check_bool, check_kind, check_seconds
from userlock.lock.lease import Priority, check_lock_timeout
from userlock.platforms import request_limits


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Polling:
    """The bounds of polling delays, in seconds; see `userlock.lock.queue.delay`."""

    least_seconds: float = 0.0001
    most_seconds: float = 0.025

    def __post_init__(self) -> None:
        check_seconds("least_seconds", self.least_seconds, least=0, most=86_400)
        check_seconds("most_seconds", self.most_seconds, least=0, most=86_400)
        if not 0 < self.least_seconds <= self.most_seconds:
            raise ValueError(f"polling needs 0 < least_seconds <= most_seconds: {self}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PriorityPolicy:
    """The defaults of one priority.

    Attributes:
        lock_timeout: length of the lease, in seconds.
        wait_timeout: longest wait for the lock, in seconds.
        polling: how often a waiter looks.
        heartbeat: whether leases are short and renewed in the background, so that a process that
            dies frees its locks within `LockPolicy.heartbeat_lock_timeout`.
        max_waiting: the most callers of this process that wait for one lock. One more gets
            `TooManyWaiting`. None: as the scope says, which in a web request is the integration's
            `max_waiting`, and otherwise no limit.
        ages_after: batch that has waited so long, in seconds, ranks with interactive requests, so
            that a stream of interactive requests cannot keep it waiting for ever. None: never by
            itself.
    """

    lock_timeout: float = 60.0
    wait_timeout: float = 10.0
    polling: Polling = Polling()
    heartbeat: bool = False
    max_waiting: int | None = None
    ages_after: float | None = 30.0

    def __post_init__(self) -> None:
        check_lock_timeout(self.lock_timeout)
        leases.check_wait_timeout(self.wait_timeout)
        check_bool("heartbeat", self.heartbeat)
        check_kind("polling", self.polling, Polling, "a Polling")
        if self.max_waiting is not None:
            leases.check_max_waiting(self.max_waiting)
        if self.ages_after is not None:
            check_seconds("ages_after", self.ages_after, least=0, most=leases.MAX_WAIT_SECONDS)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LockPolicy:
    """The defaults of both priorities.

    Attributes:
        interactive: those of interactive requests.
        batch: those of batch work, which polls less often.
        heartbeat_lock_timeout: length of a lease that is renewed, in seconds.
    """

    interactive: PriorityPolicy = PriorityPolicy()
    batch: PriorityPolicy = PriorityPolicy(
        wait_timeout=60.0, polling=Polling(least_seconds=0.001, most_seconds=0.1)
    )
    heartbeat_lock_timeout: float = 10.0

    def __post_init__(self) -> None:
        check_lock_timeout(self.heartbeat_lock_timeout, "heartbeat_lock_timeout")
        check_kind("interactive", self.interactive, PriorityPolicy, "a PriorityPolicy")
        check_kind("batch", self.batch, PriorityPolicy, "a PriorityPolicy")

    @classmethod
    def of_platform(cls) -> LockPolicy:
        """Return the defaults on this platform: a lease is as long as a request may run.

        As `USERLOCK_REQUEST_SECONDS` says, or `CLOUD_RUN_TIMEOUT_SECONDS` (set for Cloud Run
        functions); on App Engine a minute, and ten for batch; elsewhere a minute.

        Raises:
            ValueError: one of the variables is no number of seconds.
        """
        limits = request_limits()
        return cls()._with_lock_timeouts(limits.interactive, limits.batch)

    def with_lock_timeout(self, seconds: float) -> LockPolicy:
        """Return the same with leases of another length, for both priorities."""
        return self._with_lock_timeouts(seconds, seconds)

    def _with_lock_timeouts(self, interactive: float, batch: float) -> LockPolicy:
        return dataclasses.replace(
            self,
            interactive=dataclasses.replace(self.interactive, lock_timeout=interactive),
            batch=dataclasses.replace(self.batch, lock_timeout=batch),
        )

    def of(self, priority: Priority) -> PriorityPolicy:
        """Return the defaults of `priority`."""
        return self.batch if priority is Priority.BATCH else self.interactive


class OutagePolicy(enum.Enum):
    """The behaviour of an acquire when the lease store does not answer."""

    #: Carry on with a degraded lease: the site stays up, and fencing still
    #: refuses stale writes at the commit. The default.
    OPTIMISTIC = "optimistic"
    #: Raise `LockServiceUnavailable`.
    FAIL = "fail"

    @classmethod
    def of(cls, value: OutagePolicy | str) -> OutagePolicy:
        """Return the policy named by a word; `ValueError` says which words there are."""
        try:
            return cls(value)
        except ValueError:
            raise ValueError(f"outage must be 'optimistic' or 'fail', not {value!r}") from None
