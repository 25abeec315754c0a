"""The locks that holders believe they hold, and the truth of the results that they get."""

from __future__ import annotations

import dataclasses
import json
import math

from tests.simulation.watch import Watch
from tests.simulation.world import ROUNDING, Process
from userlock.lock.lease import Lease, Lost

#: Events of a lease that its holder could not notice in time.
_ACCIDENTS = ("forgotten", "broken")


@dataclasses.dataclass
class HeldLock:
    """One holding of a lock.

    Attributes:
        process: the holder's process.
        lease: the latest one.
        over: its holder no longer relies on it, because the release has begun or the loss is known.
        busy: a call on it is in progress.
        believed: the end of the holder's belief, on the process's clock: a shorter lease was
            requested, and may have been granted.
    """

    process: Process
    lease: Lease
    over: bool = False
    busy: bool = False
    believed: float = math.inf


class Tenures:
    def __init__(self, watch: Watch) -> None:
        self.all: list[HeldLock] = []
        self.violations: list[str] = []
        self._watch = watch
        watch.relied_on = self.relied_on

    def idle(self) -> list[HeldLock]:
        """Return the locks that can be released or extended now."""
        self.all = [tenure for tenure in self.all if not tenure.over]
        return [t for t in self.all if not t.busy and not t.process.dead and not t.process.paused]

    def relied_on(self, token: str) -> bool:
        """Return whether its holder holds it, by its own clock: not if the store has lost it."""
        return any(t.lease.token == token and self._relies(t) for t in self.all)

    def _relies(self, tenure: HeldLock) -> bool:
        ending = self._watch.endings.get(tenure.lease.token)
        return (
            not tenure.over
            and not tenure.lease.degraded
            # Clocks with an offset are sums of floats.
            and tenure.process.clock.now() + ROUNDING < min(tenure.lease.deadline, tenure.believed)
            and (ending is None or ending.how not in _ACCIDENTS)
        )

    def check_exclusion(self) -> None:
        holders: dict[str, HeldLock] = {}
        for tenure in self.all:
            if self._relies(tenure):
                other = holders.setdefault(tenure.lease.lock_id, tenure)
                assert other is tenure, (
                    f"{tenure.lease.lock_id} is held by {other.process.name} "
                    f"and by {tenure.process.name}"
                )

    # --- reported results ------------------------------------------------------------------

    def check_released(self, lease: Lease, asked_at: float, *, faultless: bool) -> None:
        """Check a result `Released`: the lease was ours when the release began, and has ended."""
        ending = self._watch.endings.get(lease.token)
        if ending is None:
            if not lease.unsettled:  # else a late command may have restored it since
                self._violation(lease, "was reported as released, but still exists")
        elif ending.how in ("removed", "removed late", "released", "released late"):
            return
        elif ending.at < asked_at and (faultless or ending.how not in _ACCIDENTS):
            self._violation(lease, f"was reported as released, but was {ending.how} before")
        elif faultless and ending.how != "broken":
            self._violation(lease, f"was reported as released, but was {ending.how}")

    def check_lost(self, lost: Lost, lease: Lease, process: Process, asked_at: float) -> None:
        """Check a result `Lost`: its reason is the actual event."""
        ending = self._watch.endings.get(lease.token)
        happened = "nothing" if ending is None else ending.how
        true = {
            "ran out": process.clock.now() >= lease.deadline,
            # The record names the client that broke a lock, as long as the record exists.
            "forgotten": happened in _ACCIDENTS and lost.holder is None,
            "taken": happened in _ACCIDENTS and lost.holder is not None,
            "broken": ending is not None
            and happened == "broken"
            and ending.by == json.dumps(lost.by),
        }[lost.how]
        if not true:
            self._violation(lease, f"is reported as {lost.how}; actual event: {happened}")
        if ending is not None and ending.how in ("removed", "released") and ending.at >= asked_at:
            self._violation(lease, f"is reported as {lost.how}, but this very call released it")
        if lost.holder is not None:
            since = self._watch.holders_since(lease.lock_id, asked_at)
            if lost.holder.token not in since:
                self._violation(lease, "is reported as held by a client that did not hold it")

    def _violation(self, lease: Lease, what: str) -> None:
        self.violations.append(f"the lease {lease.token[-4:]} of {lease.lock_id} {what}")
