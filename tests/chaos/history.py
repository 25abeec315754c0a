"""The records of all processes of a run, read and combined."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.record import Outcome, Write
from tests.history import Attempt

Facts = Mapping[str, Any]


@dataclasses.dataclass
class Asked(Attempt):
    """One attempt at a lock, with the lease that it got.

    Attributes:
        degraded: whether the lease was degraded at first.
        confirmed: the time when the store confirmed a degraded lease.
        deadline: the known end of the lease, by the holder's clock.
        backed_until: the end of the lease in the fallback store that backs a degraded one.
        error: the error that reported the failure.
        overslept: total time that sleeps took longer than requested.
    """

    id: str = ""
    token: str = ""
    degraded: bool = False
    confirmed: float | None = None
    deadline: float = -math.inf
    backed_until: float | None = None
    error: str = ""
    overslept: float = 0.0

    @property
    def ended(self) -> float | None:
        """Return the time of its result, or None if its process was killed before."""
        return self.failed if self.granted is None else self.granted

    @property
    def held_from(self) -> float | None:
        """Return the time of the store's grant, or None."""
        return self.confirmed if self.degraded else self.granted

    @property
    def held_until(self) -> float:
        """Return the time until which it regarded itself as the holder."""
        return self.deadline if self.released is None else min(self.released, self.deadline)


@dataclasses.dataclass(frozen=True)
class LockedRead:
    """A read under a lock.

    Attributes:
        found: the id of the write that had produced the state; None: the entity was missing.
    """

    entity: str
    found: str | None
    token: str
    began: float
    ended: float


@dataclasses.dataclass(frozen=True)
class Staging:
    """A job of the outbox that was staged in a transaction.

    Attributes:
        kind: one of `jobs.KINDS`.
        key: of its row. Of a duplicate, of the other job's row.
        duplicate: whether a job of that name was there already.
        failures: the number of its first runs that fail.
        ready: the time of a wall clock from which on it may run; 0: its commit makes it due.
        since: a moment before its transaction.
    """

    id: str
    user: str
    kind: str
    key: str
    duplicate: bool
    failures: int
    ready: float
    since: float


@dataclasses.dataclass
class Run:
    """A run of a job.

    Attributes:
        wall: the same by the worker's wall clock.
        claimed_after: a moment before the claim, by both clocks.
        locked: whether the worker had the confirmed lock of its owner.
        ended: the end; None if its process was killed before.
        error: the error that it ended with; empty for none.
    """

    number: str
    id: str
    who: str
    began: float
    wall: float
    claimed_after: tuple[float, float]
    locked: bool
    ended: float | None = None
    error: str = ""


@dataclasses.dataclass
class Felling:
    """A deletion of a tree."""

    tree: str
    forbidden: bool
    outcome: Outcome = Outcome.UNKNOWN


@dataclasses.dataclass(frozen=True)
class Span:
    """An event with a duration, usually a fault.

    Attributes:
        locks: the affected locks; None: all.
        who: the affected process; None: all.
    """

    kind: str
    began: float
    ended: float
    locks: frozenset[str] | None = None
    who: str | None = None

    def meets(self, began: float, ended: float) -> bool:
        """Return whether it overlaps this interval."""
        return self.began <= ended and self.ended >= began

    def affects(self, lock_id: str) -> bool:
        """Return whether this lock is among the affected ones.

        `locks` are those of users. One of a call (`=[…]`) may be on the same server.
        """
        return self.locks is None or lock_id in self.locks or lock_id.startswith("=")


@dataclasses.dataclass
class History:
    """The records of all processes."""

    writes: dict[str, Write] = dataclasses.field(default_factory=dict)
    attempts: dict[str, Asked] = dataclasses.field(default_factory=dict)
    reads: list[LockedRead] = dataclasses.field(default_factory=list)
    spans: list[Span] = dataclasses.field(default_factory=list)
    gauges: list[Facts] = dataclasses.field(default_factory=list)
    stagings: dict[str, Staging] = dataclasses.field(default_factory=dict)
    runs: dict[str, Run] = dataclasses.field(default_factory=dict)
    #: Of each write of a root or a leaf, the id of the root.
    planted: dict[str, str] = dataclasses.field(default_factory=dict)
    fellings: dict[str, Felling] = dataclasses.field(default_factory=dict)
    #: Writes that were refused for one of another namespace, and for what.
    strays: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    #: Of each write of an entry that belongs to a request with an idempotency key, the request.
    entered: dict[str, str] = dataclasses.field(default_factory=dict)
    #: Such requests, and the entries that they were answered with.
    answers: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    #: A provider's keys, each with the request that it was asked for.
    charged: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    #: The number of such requests by outcome.
    requests: Counter[str] = dataclasses.field(default_factory=Counter)
    #: Of each attempt of a transaction that stages jobs, the time just before its commit.
    sent: dict[str, float] = dataclasses.field(default_factory=dict)
    #: The number of messages of the outbox by outcome.
    delivered: Counter[str] = dataclasses.field(default_factory=Counter)
    #: The number of operations by kind and ending.
    operations: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    #: The number of packets and requests that met each fault.
    met: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def tenures(self) -> dict[str, Asked]:
        """Return the granted attempts, by their leases' tokens."""
        return {asked.token: asked for asked in self.attempts.values() if asked.token}


def read(paths: Iterable[Path]) -> History:
    """Read the files of several recorders. An incomplete last line is ignored."""
    history = History()
    for path in paths:
        _Reader(history).read(_lines(path))
    return history


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class _Reader:
    """The reader of one process's records."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._tenures: dict[str, Asked] = {}
        self._open: dict[int, dict[str, Any]] = {}
        self._verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "write": self._write,
            "outcome": self._outcome,
            "read": lambda facts: history.reads.append(_read_of(facts)),
            "asked": self._asked,
            "queued": self._queued,
            "granted": self._granted,
            "failed": self._failed,
            "extended": self._extended,
            "confirmed": self._confirmed,
            "releasing": self._releasing,
            "begins": lambda facts: self._open.update({facts["number"]: facts}),
            "ends": lambda facts: self._span(self._open.pop(facts["number"]), facts["at"]),
            "late": lambda facts: self._span(facts, facts["at"] + facts["lasts"]),
            "starved": lambda facts: history.spans.append(
                Span("process starved", facts["began"], facts["at"], who=facts["who"])
            ),
            "gauge": history.gauges.append,
            "operation": self._operation,
            "staged": self._staged,
            "sent": lambda facts: history.sent.update({facts["together"]: facts["at"]}),
            "run": self._run,
            "ran": self._ran,
            "delivered": lambda facts: history.delivered.update([facts["outcome"]]),
            "planted": lambda facts: history.planted.update({facts["id"]: facts["tree"]}),
            "charged": lambda facts: history.charged.append((facts["key"], facts["request"])),
            "entered": lambda facts: history.entered.update({facts["id"]: facts["request"]}),
            "request": self._request,
            "stray": lambda facts: history.strays.append((facts["id"], facts["where"])),
            "felling": self._felling,
            "felled": self._fell,
            "met": lambda facts: history.met.update({facts["kind"]: facts["count"]}),
        }

    def read(self, lines: Iterable[dict[str, Any]]) -> None:
        for facts in lines:
            self._verbs[facts.pop("what")](facts)
        for facts in self._open.values():
            self._span(facts, math.inf)

    def _write(self, facts: dict[str, Any]) -> None:
        made = facts.pop("at")
        self._history.writes[facts["id"]] = Write(**facts, made=made)

    def _outcome(self, facts: dict[str, Any]) -> None:
        write = self._history.writes[facts["id"]]
        write.outcome = Outcome(facts["outcome"])
        write.error, write.reported = facts["error"], facts["at"]

    def _asked(self, facts: dict[str, Any]) -> None:
        began = facts.pop("at")
        self._history.attempts[facts["id"]] = Asked(**facts, began=began)

    def _queued(self, facts: dict[str, Any]) -> None:
        self._history.attempts[facts["id"]].queued = facts["at"]

    def _granted(self, facts: dict[str, Any]) -> None:
        asked = self._end(facts)
        asked.granted = facts["at"]
        asked.token, asked.degraded = facts["token"], facts["degraded"]
        asked.deadline, asked.backed_until = facts["deadline"], facts["backed_until"]
        self._tenures[asked.token] = asked

    def _failed(self, facts: dict[str, Any]) -> None:
        asked = self._end(facts)
        asked.failed, asked.error = facts["at"], facts["error"]

    def _end(self, facts: dict[str, Any]) -> Asked:
        asked = self._history.attempts[facts["id"]]
        asked.overslept, asked.excused = facts["overslept"], facts["excused"]
        return asked

    def _extended(self, facts: dict[str, Any]) -> None:
        asked = self._tenures.get(facts["token"])
        if asked is not None:
            asked.deadline, asked.backed_until = facts["deadline"], facts["backed_until"]

    def _confirmed(self, facts: dict[str, Any]) -> None:
        asked = self._tenures.get(facts["token"])
        # Confirmed at the very moment of its release, it is released at once.
        if asked is not None and asked.released is None:
            asked.confirmed, asked.deadline = facts["at"], facts["deadline"]

    def _releasing(self, facts: dict[str, Any]) -> None:
        asked = self._tenures.get(facts["token"])
        if asked is not None and asked.released is None:
            asked.released = facts["at"]

    def _span(self, facts: dict[str, Any], ended: float) -> None:
        locks = facts.get("locks")
        affected = None if locks is None else frozenset(locks)
        self._history.spans.append(
            Span(facts["kind"], facts["at"], ended, affected, facts.get("who"))
        )

    def _operation(self, facts: dict[str, Any]) -> None:
        self._history.operations[facts["kind"], facts["ended"]] += 1

    def _staged(self, facts: dict[str, Any]) -> None:
        del facts["at"]
        self._history.stagings[facts["id"]] = Staging(**facts)

    def _request(self, facts: dict[str, Any]) -> None:
        self._history.requests[facts["outcome"]] += 1
        if "entry" in facts:
            self._history.answers.append((facts["request"], facts["entry"]))

    def _felling(self, facts: dict[str, Any]) -> None:
        self._history.fellings[facts["id"]] = Felling(facts["tree"], facts["forbidden"])

    def _fell(self, facts: dict[str, Any]) -> None:
        self._history.fellings[facts["id"]].outcome = Outcome(facts["outcome"])

    def _run(self, facts: dict[str, Any]) -> None:
        began = facts.pop("at")
        steady, wall = facts.pop("claimed_after")
        self._history.runs[facts["number"]] = Run(
            **facts, began=began, claimed_after=(steady, wall)
        )

    def _ran(self, facts: dict[str, Any]) -> None:
        run = self._history.runs[facts["number"]]
        run.ended, run.error = facts["at"], facts["error"]


def _read_of(facts: Facts) -> LockedRead:
    return LockedRead(facts["entity"], facts["found"], facts["token"], facts["began"], facts["at"])
