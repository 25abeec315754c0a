"""The notes of all processes of a trial, read and put together."""

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
        id: no other attempt has it.
        token: of the lease.
        degraded: the lease was taken without the store's word.
        confirmed: when the store gave its word after all.
        deadline: until when the lease is known to have run, by the holder's clock.
        error: by which it was told that it could not have the lock.
        overslept: for how long altogether the machine let it sleep beyond what it asked for.
    """

    id: str = ""
    token: str = ""
    degraded: bool = False
    confirmed: float | None = None
    deadline: float = -math.inf
    error: str = ""
    overslept: float = 0.0

    @property
    def ended(self) -> float | None:
        """When it was told; None: it never was, for its process was killed."""
        return self.gave_up if self.granted is None else self.granted

    @property
    def held_from(self) -> float | None:
        """From when on it had the lock by the store's word; None: never."""
        return self.confirmed if self.degraded else self.granted

    @property
    def held_until(self) -> float:
        """Until when it took itself for the holder."""
        return self.deadline if self.released is None else min(self.released, self.deadline)


@dataclasses.dataclass(frozen=True)
class Sight:
    """What was read under a lock.

    Attributes:
        entity: which one.
        found: the id of the write that had made it what it was; None: there was none.
        token: of the lease.
        began: when it was asked for.
        ended: when it was there.
    """

    entity: str
    found: str | None
    token: str
    began: float
    ended: float


@dataclasses.dataclass(frozen=True)
class Span:
    """Something that went on for a while: a fault, most often.

    Attributes:
        kind: what it was.
        began: from when on, in seconds.
        ended: until when.
        lock: which lock it is about; None: all.
        who: which process; None: all.
    """

    kind: str
    began: float
    ended: float
    lock: str | None = None
    who: str | None = None

    def meets(self, began: float, ended: float) -> bool:
        """Whether any of it is between these moments."""
        return self.began <= ended and self.ended >= began


@dataclasses.dataclass
class History:
    """What all processes have noted."""

    writes: dict[str, Write] = dataclasses.field(default_factory=dict)
    attempts: dict[str, Asked] = dataclasses.field(default_factory=dict)
    sights: list[Sight] = dataclasses.field(default_factory=list)
    spans: list[Span] = dataclasses.field(default_factory=list)
    gauges: list[Facts] = dataclasses.field(default_factory=list)
    #: How many operations of each kind ended how.
    operations: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    #: How many packets and requests met what.
    met: Counter[str] = dataclasses.field(default_factory=Counter)

    @property
    def tenures(self) -> dict[str, Asked]:
        """The attempts that were granted, by their leases' tokens."""
        return {asked.token: asked for asked in self.attempts.values() if asked.token}


def read(paths: Iterable[Path]) -> History:
    """What several recorders have noted. A last line that breaks off is left out."""
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
    """Reads what one process has noted."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._tenures: dict[str, Asked] = {}
        self._open: dict[int, dict[str, Any]] = {}
        self._verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "write": self._write,
            "outcome": self._outcome,
            "read": lambda facts: history.sights.append(_sight(facts)),
            "asks": self._asks,
            "stands": self._stands,
            "granted": self._granted,
            "gave up": self._gave_up,
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
        write.error, write.told = facts["error"], facts["at"]

    def _asks(self, facts: dict[str, Any]) -> None:
        began = facts.pop("at")
        self._history.attempts[facts["id"]] = Asked(**facts, began=began)

    def _stands(self, facts: dict[str, Any]) -> None:
        self._history.attempts[facts["id"]].stood = facts["at"]

    def _granted(self, facts: dict[str, Any]) -> None:
        asked = self._end(facts)
        asked.granted = facts["at"]
        asked.token, asked.degraded = facts["token"], facts["degraded"]
        asked.deadline = facts["deadline"]
        self._tenures[asked.token] = asked

    def _gave_up(self, facts: dict[str, Any]) -> None:
        asked = self._end(facts)
        asked.gave_up, asked.error = facts["at"], facts["error"]

    def _end(self, facts: dict[str, Any]) -> Asked:
        asked = self._history.attempts[facts["id"]]
        asked.overslept, asked.excused = facts["overslept"], facts["excused"]
        return asked

    def _extended(self, facts: dict[str, Any]) -> None:
        asked = self._tenures.get(facts["token"])
        if asked is not None:
            asked.deadline = facts["deadline"]

    def _confirmed(self, facts: dict[str, Any]) -> None:
        asked = self._tenures.get(facts["token"])
        # Confirmed at the very moment in which it was left, it is given back at once.
        if asked is not None and asked.released is None:
            asked.confirmed, asked.deadline = facts["at"], facts["deadline"]

    def _releasing(self, facts: dict[str, Any]) -> None:
        asked = self._tenures.get(facts["token"])
        if asked is not None and asked.released is None:
            asked.released = facts["at"]

    def _span(self, facts: dict[str, Any], ended: float) -> None:
        self._history.spans.append(
            Span(facts["kind"], facts["at"], ended, facts.get("lock"), facts.get("who"))
        )

    def _operation(self, facts: dict[str, Any]) -> None:
        self._history.operations[facts["kind"], facts["ended"]] += 1


def _sight(facts: Facts) -> Sight:
    return Sight(facts["entity"], facts["found"], facts["token"], facts["began"], facts["at"])
