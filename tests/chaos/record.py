"""The records of each process: a line before an event and a line after it.

The files are only appended to, a whole line at a time, so a killed process leaves its knowledge: a
write without an outcome may have landed or not. Times are in seconds of the machine's steady clock
(CLOCK_BOOTTIME), which is the same in all processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from userlock.clock import SYSTEM_CLOCK

#: The interval at which a process checks for pauses.
LOOK_SECONDS = 0.1


class Outcome(enum.Enum):
    """The reported outcome of a write."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclasses.dataclass
class Write:
    """One write of one entity.

    Attributes:
        id: unique, and stored with the entity.
        operation: its operation. A repeated operation makes writes with new ids.
        entity: the entity; None for a new entity that is never changed.
        before: the id of the previous write, which was read; None: the entity was missing.
        together: writes with the same value land all or none.
        token: the token of its lease; None: there is none.
        forbidden: whether it must be refused before it is sent.
        made: the time just before it was sent.
        reported: the time when its outcome was known, if it was.
    """

    id: str
    operation: str
    entity: str | None
    before: str | None
    deletes: bool = False
    together: str | None = None
    token: str | None = None
    forbidden: bool = False
    outcome: Outcome = Outcome.UNKNOWN
    error: str = ""
    made: float = 0.0
    reported: float | None = None


@dataclasses.dataclass(frozen=True)
class Stored:
    """An entity at the end: the id of its last write, and its number of writes."""

    last: str
    count: int


@dataclasses.dataclass(frozen=True)
class StoredJobs:
    """The jobs of the outbox at the end.

    Attributes:
        ledgers: of each user and namespace, the ids of the jobs that have taken effect, in that
            order.
        dead: the dead letters, with their attempts.
        unfinished: the jobs that are neither done nor dead.
        names: the names of jobs that have not begun.
    """

    ledgers: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    dead: Mapping[str, int] = dataclasses.field(default_factory=dict)
    unfinished: Sequence[str] = ()
    names: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class StoredTrees:
    """The trees and titles at the end.

    Attributes:
        leaves: the ids of the leaves, each with its root's.
        files: the leaves that have a file.
        titles: user and title of all entities that have a unique one.
        problems: the entities and claims that disagree.
    """

    roots: frozenset[str] = frozenset()
    leaves: Mapping[str, str] = dataclasses.field(default_factory=dict)
    files: frozenset[str] = frozenset()
    unfinished: Sequence[str] = ()
    titles: Sequence[tuple[str, str]] = ()
    problems: Sequence[str] = ()


class Recorder:
    """A writer of records. Thread-safe.

    Args:
        path: the file, for this recorder alone.
    """

    def __init__(self, path: Path) -> None:
        self._out = path.open("a")
        self._mutex = threading.Lock()
        self._numbers = itertools.count(1)

    def note(self, what: str, **facts: object) -> None:
        """Record an event at the present time."""
        line = json.dumps({"what": what, "at": SYSTEM_CLOCK.now(), **facts}) + "\n"
        with self._mutex:
            self._out.write(line)
            self._out.flush()

    def about_to(self, write: Write) -> None:
        """Record a write that is about to be sent, before its outcome."""
        facts = dataclasses.asdict(write)
        for unknown in ("outcome", "error", "made", "reported"):
            del facts[unknown]
        self.note("write", **facts)

    def ended(self, write: Write, outcome: Outcome, error: BaseException | None = None) -> None:
        """Record the final knowledge of a write's outcome."""
        write.outcome = outcome
        write.error = "" if error is None else type(error).__name__
        self.note("outcome", id=write.id, outcome=outcome.value, error=write.error)

    @contextlib.contextmanager
    def span(self, kind: str, **facts: object) -> Iterator[None]:
        """Record an event with a duration. Without an end record it lasts for ever."""
        number = next(self._numbers)
        self.note("begins", number=number, kind=kind, **facts)
        try:
            yield
        finally:
            self.note("ends", number=number)

    def close(self) -> None:
        self._out.close()
