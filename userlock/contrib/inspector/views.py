"""The inspector's views: each is a table, for people and for programs."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from userlock.admin import snapshot
from userlock.contrib.inspector.tally import Tally, Waits
from userlock.lock.lease import process_label
from userlock.lock.service import LockService
from userlock.lock.store import StoreUnavailable
from userlock.reports import violations
from userlock.words import counted

#: Rows of a table at most: what is beyond it is counted, and not shown.
_MOST_ROWS = 200
#: Locks that are looked at one by one, where the store lists none.
_MOST_ASKED = 50


class Kind(enum.Enum):
    """The format of a value for people."""

    TEXT = enum.auto()
    COUNT = enum.auto()
    #: A stretch of time, in seconds.
    SECONDS = enum.auto()
    #: A moment, in seconds since 1970.
    TIME = enum.auto()
    CODE = enum.auto()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A table.

    Attributes:
        name: in addresses.
        title, about: for people.
        columns: by the keys of rows: a title and a kind.
        rows: as facts.
        notes: what a reader has to know beside them: what is missing, and why.
        local: it is about this process only.
        empty: what no row means.
    """

    name: str
    title: str
    about: str
    columns: Mapping[str, tuple[str, Kind]]
    rows: list[dict[str, Any]]
    empty: str
    notes: list[str] = dataclasses.field(default_factory=list)
    local: bool = True


class Mask:
    """The format of lock ids and requests.

    Args:
        key: makes the same lock look the same; None: nothing is masked.
        route: the route of a request ("POST /users/ann" as "POST /users/<user_id>"), so that
            no id is seen there either; used with a key only.
    """

    def __init__(self, key: bytes | None, route: Callable[[str], str]) -> None:
        self._key = key
        self._route = route

    @property
    def masks(self) -> bool:
        return self._key is not None

    def lock_id(self, lock_id: str) -> str:
        if self._key is None or not lock_id:
            return lock_id
        return "•" + hashlib.blake2b(lock_id.encode(), digest_size=5, key=self._key).hexdigest()

    def request(self, request: str) -> str:
        return request if self._key is None else self._route(request)


class Views:
    """The views of one app in one process.

    Args:
        service: whose locks.
        tally: what this process has seen.
        mask: how ids are written.
    """

    def __init__(self, service: Callable[[], LockService], tally: Tally, mask: Mask) -> None:
        self._service = service
        self._tally = tally
        self._mask = mask
        self.by_name: dict[str, Callable[[], View]] = {
            "locks": self.locks,
            "contention": self.contention,
            "endpoints": self.endpoints,
            "violations": self.violations,
            "outages": self.outages,
            "heartbeats": self.heartbeats,
        }

    def locks(self) -> View:
        """Return holders and waiters, the lock with the longest wait first."""
        service = self._service()
        notes, rows = [], []
        try:
            sample = snapshot.take(service, [], service.clock.wall())
        except StoreUnavailable as trouble:
            notes.append(f"The lock store does not answer: {trouble.reason}.")
        else:
            if sample.note:
                notes.append(f"Not complete: {sample.note}.")
                if not sample.locks:
                    # Then at least those that somebody had to wait for here.
                    known = list(self._tally.by_lock.copy())[-_MOST_ASKED:]
                    sample = snapshot.take(service, known, sample.wall) if known else sample
            for seen in sample.select(everything=True):
                rows += self._rows_of(seen, sample.wall)
        if len(rows) > _MOST_ROWS:
            notes.append(f"{counted(len(rows) - _MOST_ROWS, 'more row')} not shown.")
        return View(
            name="locks",
            title="Locks",
            about="Who holds a lock now, and who waits for it, in the order in which they will be "
            "served. Of all processes that share the lock store.",
            columns={
                "lock_id": ("Lock", Kind.CODE),
                "role": ("", Kind.TEXT),
                "request": ("Request", Kind.CODE),
                "priority": ("Priority", Kind.TEXT),
                "seconds": ("For", Kind.SECONDS),
                "process": ("Process", Kind.TEXT),
            },
            rows=rows[:_MOST_ROWS],
            empty="" if notes else "Nobody holds a lock.",
            notes=notes,
            local=False,
        )

    def _rows_of(self, seen: snapshot.LockState, wall: float) -> list[dict[str, Any]]:
        facts = snapshot.facts(seen.name, seen.record, wall, hashed=seen.hashed)
        # The hash that a store keeps can be guessed at, so it is masked as well.
        name = self._mask.lock_id(seen.name)
        rows = []
        holder = facts["holder"]
        if holder is not None:
            blocked = holder.get("waits_for")
            rows.append(
                {
                    "lock_id": name,
                    "role": "holds it"
                    + (f", and waits for {self._mask.lock_id(blocked)}" if blocked else ""),
                    "request": self._mask.request(holder.get("request", "")),
                    "priority": holder.get("priority", ""),
                    "seconds": holder.get("held_seconds"),
                    "process": holder["process"],
                    "token": holder.get("token", ""),
                }
            )
        for number, waiter in enumerate(facts["waiters"], start=1):
            rows.append(
                {
                    "lock_id": name,
                    "role": f"waits, number {number}" + (" (aged)" if waiter["aged"] else ""),
                    "request": self._mask.request(waiter["request"]),
                    "priority": waiter["priority"],
                    "seconds": waiter["waiting_seconds"],
                    "process": waiter["process"],
                }
            )
        return rows

    def contention(self) -> View:
        """Locks that had to be waited for."""
        return self._waits(
            "contention",
            "Contention by lock",
            "Locks that requests of this process had to wait for, those first that cost most.",
            ("Lock", self._mask.lock_id),
            {name: waits for name, waits in self._tally.by_lock.copy().items() if waits.waited},
        )

    def endpoints(self) -> View:
        """Return the same by what the app was doing."""
        return self._waits(
            "endpoints",
            "Contention by endpoint",
            "What requests of this process were doing when they took locks, and waited for them.",
            ("Endpoint", str),
            self._tally.by_endpoint.copy(),
        )

    def _waits(
        self,
        name: str,
        title: str,
        about: str,
        what: tuple[str, Callable[[str], str]],
        table: Mapping[str, Waits],
    ) -> View:
        heading, written = what
        costly = sorted(table.items(), key=lambda item: -item[1].waited_seconds)
        return View(
            name=name,
            title=title,
            about=about,
            columns={
                "what": (heading, Kind.CODE),
                "locks": ("Granted", Kind.COUNT),
                "waited": ("Had to wait", Kind.COUNT),
                "timed_out": ("In vain", Kind.COUNT),
                "waited_seconds": ("Waited in all", Kind.SECONDS),
                "longest_seconds": ("Longest", Kind.SECONDS),
            },
            rows=[
                {"what": written(each) or "(not in a request)", **dataclasses.asdict(waits)}
                for each, waits in costly[:_MOST_ROWS]
            ],
            empty="Nothing had to wait so far.",
        )

    def violations(self) -> View:
        """Writes that slipped past their lock, with both places in the code."""
        return View(
            name="violations",
            title="Violations",
            about="Places in the code where entities were put that their lock did not cover: "
            "refused, or only logged, as the app is set.",
            columns={
                "violation": ("Violation", Kind.TEXT),
                "kind": ("Kind", Kind.TEXT),
                "count": ("Times", Kind.COUNT),
                "put_at": ("Put at", Kind.CODE),
                "read_at": ("Read at", Kind.CODE),
                "since": ("First", Kind.TIME),
            },
            rows=[dataclasses.asdict(each) for each in violations()[:_MOST_ROWS]],
            empty="None so far.",
        )

    def outages(self) -> View:
        """Stretches in which the store did not answer, and what else should be rare."""
        return View(
            name="outages",
            title="Outages",
            about="Stretches of time in which the lock store did not answer this process. What "
            "was written meanwhile was fenced.",
            columns={
                "since": ("From", Kind.TIME),
                "seconds": ("For", Kind.SECONDS),
                "degraded": ("Went on without", Kind.COUNT),
                "refused": ("Refused", Kind.COUNT),
                "reason": ("Reason", Kind.TEXT),
            },
            rows=[
                {**dataclasses.asdict(each), "seconds": each.until - each.since}
                for each in reversed(self._tally.outages.copy())
            ],
            empty="None so far.",
            notes=[
                f"{name}: {count:,} since this process began."
                for name, count in sorted(self._tally.troubles.copy().items())
            ],
        )

    def heartbeats(self) -> View:
        """Return the state of the renewal thread."""
        renewals = self._service().renewals
        return View(
            name="heartbeats",
            title="Heartbeats",
            about="Leases that this process renews in the background, or gives back when the "
            "store answers again.",
            columns={
                "process": ("Process", Kind.TEXT),
                "looked_after": ("Looked after", Kind.COUNT),
                "thread": ("Thread", Kind.TEXT),
            },
            rows=[
                {
                    "process": process_label(),
                    "looked_after": len(renewals),
                    "thread": "runs" if renewals.running else "not needed so far",
                }
            ],
            empty="",
        )
