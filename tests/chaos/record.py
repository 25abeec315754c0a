"""What happened, as each process notes it: a line before and a line after.

The files are only appended to, a whole line at a time, so a process that is
killed leaves what it knew: a write without an outcome may have landed or not.
Times are in seconds on the machine's clock that goes on whatever happens
(CLOCK_BOOTTIME), which is the same one in all processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import itertools
import json
import threading
from collections.abc import Iterator
from pathlib import Path

from userlock.clock import SYSTEM_CLOCK

#: How often a process looks whether it is let run.
LOOK_SECONDS = 0.1


class Outcome(enum.Enum):
    """What whoever made a write was told of it."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclasses.dataclass
class Write:
    """One write of one entity.

    Attributes:
        id: stored with the entity; no other write has it.
        operation: of which it is a part. One that is run again makes writes of new ids.
        entity: which one; None for an entity of its own, that is created and never changed.
        before: the id of the write that was read, on which this one builds; None: there was none.
        deletes: whether it deletes the entity.
        together: writes of which this says the same land all or none.
        token: of the lease under which it is made; None: under none.
        forbidden: whether it is made where it must be refused, before it is sent.
        outcome: as it was told.
        error: by which it was told, if by one.
        made: when it was about to be sent.
        told: when its outcome was known, if it was.
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
    told: float | None = None


@dataclasses.dataclass(frozen=True)
class Stored:
    """An entity at the end: the id of its last write, and how many there were from its creation."""

    last: str
    count: int


class Recorder:
    """Notes what happens in a file. Thread-safe.

    Args:
        path: of the file; of this recorder alone.
    """

    def __init__(self, path: Path) -> None:
        self._out = path.open("a")
        self._mutex = threading.Lock()
        self._numbers = itertools.count(1)

    def note(self, what: str, **facts: object) -> None:
        """Something has happened just now."""
        line = json.dumps({"what": what, "at": SYSTEM_CLOCK.now(), **facts}) + "\n"
        with self._mutex:
            self._out.write(line)
            self._out.flush()

    def about_to(self, write: Write) -> None:
        """It is about to be sent: whoever reads a note of its outcome knows what it was."""
        facts = dataclasses.asdict(write)
        for unknown in ("outcome", "error", "made", "told"):
            del facts[unknown]
        self.note("write", **facts)

    def ended(self, write: Write, outcome: Outcome, error: BaseException | None = None) -> None:
        """Its outcome is known as far as it will be."""
        write.outcome = outcome
        write.error = "" if error is None else type(error).__name__
        self.note("outcome", id=write.id, outcome=outcome.value, error=write.error)

    @contextlib.contextmanager
    def span(self, kind: str, **facts: object) -> Iterator[None]:
        """Something goes on for a while. One that is never ended may go on for ever."""
        number = next(self._numbers)
        self.note("begins", number=number, kind=kind, **facts)
        try:
            yield
        finally:
            self.note("ends", number=number)

    def close(self) -> None:
        self._out.close()
