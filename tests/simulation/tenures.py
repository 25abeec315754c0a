"""Who holds what, as far as the holders know; and whether what they are told about it is true."""

from __future__ import annotations

import dataclasses
import json
import math

from tests.simulation.watch import Watch
from tests.simulation.world import ROUNDING, Process
from userlock.lock.lease import Lease, Lost

#: What has happened to a lease that its holder could not know of in time.
_ACCIDENTS = ("forgotten", "broken")


@dataclasses.dataclass
class HeldLock:
    """One holding of a lock.

    Attributes:
        process: whose.
        lease: the latest one.
        over: its holder relies on it no longer: it has begun to release it, or knows it lost.
        busy: something is being done about it.
        believed: its holder believes in it no longer than that, on the process's clock: a shorter
            lease was asked for, and may have been granted.
    """

    process: Process
    lease: Lease
    over: bool = False
    busy: bool = False
    believed: float = math.inf


class Tenures:
    """All tenures of a world.

    Attributes:
        complaints: what must not have happened.
    """

    def __init__(self, watch: Watch) -> None:
        self.all: list[HeldLock] = []
        self.complaints: list[str] = []
        self._watch = watch
        watch.relied_on = self.relied_on

    def idle(self) -> list[HeldLock]:
        """Those that can be released or extended now."""
        self.all = [tenure for tenure in self.all if not tenure.over]
        return [t for t in self.all if not t.busy and not t.process.dead and not t.process.paused]

    def relied_on(self, token: str) -> bool:
        """Whether the lock is held under that token, by its holder's own clock.

        Not when the store has lost the record, or an operator has broken the
        lock: the holder may go on then, until it finds out.
        """
        return any(t.lease.token == token and self._relies(t) for t in self.all)

    def _relies(self, tenure: HeldLock) -> bool:
        ending = self._watch.endings.get(tenure.lease.token)
        return (
            not tenure.over
            and not tenure.lease.degraded
            # Clocks that run ahead are sums of floats.
            and tenure.process.clock.now() + ROUNDING < min(tenure.lease.deadline, tenure.believed)
            and (ending is None or ending.how not in _ACCIDENTS)
        )

    def check_exclusion(self) -> None:
        """No lock is held twice."""
        holders: dict[str, HeldLock] = {}
        for tenure in self.all:
            if self._relies(tenure):
                other = holders.setdefault(tenure.lease.lock_id, tenure)
                assert other is tenure, (
                    f"{tenure.lease.lock_id} is held by {other.process.name} "
                    f"and by {tenure.process.name}"
                )

    # --- what holders are told --------------------------------------------------------------

    def check_released(self, lease: Lease, asked_at: float, *, faultless: bool) -> None:
        """`Released` was said: the lease was ours when the release began, and has ended."""
        ending = self._watch.endings.get(lease.token)
        if ending is None:
            if not lease.unsettled:  # else a late command may have brought it back since
                self._complain(lease, "was said to be released, and is still there")
        elif ending.how in ("removed", "released", "released late"):
            return
        elif ending.at < asked_at and (faultless or ending.how not in _ACCIDENTS):
            self._complain(lease, f"was said to be released, but was {ending.how} before")
        elif faultless and ending.how != "broken":
            self._complain(lease, f"was said to be released, but was {ending.how}")

    def check_lost(self, lost: Lost, lease: Lease, process: Process, asked_at: float) -> None:
        """`Lost` was said: what became of the lease is what happened to it."""
        ending = self._watch.endings.get(lease.token)
        happened = "nothing" if ending is None else ending.how
        true = {
            "ran out": process.clock.now() >= lease.deadline,
            # Who broke a lock stands in its record, for as long as there is one.
            "forgotten": happened in _ACCIDENTS and lost.holder is None,
            "taken": happened in _ACCIDENTS and lost.holder is not None,
            "broken": ending is not None
            and happened == "broken"
            and ending.by == json.dumps(lost.by),
        }[lost.how]
        if not true:
            self._complain(lease, f"is said to be {lost.how}; what happened to it: {happened}")
        if ending is not None and ending.how in ("removed", "released") and ending.at >= asked_at:
            self._complain(lease, f"is said to be {lost.how}, and was released by this very call")
        if lost.holder is not None:
            since = self._watch.holders_since(lease.lock_id, asked_at)
            if lost.holder.token not in since:
                self._complain(lease, "is said to be held by one who did not hold it")

    def _complain(self, lease: Lease, what: str) -> None:
        self.complaints.append(f"the lease {lease.token[-4:]} of {lease.lock_id} {what}")
