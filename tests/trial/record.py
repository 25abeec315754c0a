"""What became of each write: noted by the process that makes it, before and after.

A process that dies leaves what it knew: a write without an outcome may have landed or not.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Iterable
from pathlib import Path


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
        outcome: as it was told.
        error: by which it was told, if by one.
    """

    id: str
    operation: str
    entity: str | None
    before: str | None
    deletes: bool = False
    together: str | None = None
    outcome: Outcome = Outcome.UNKNOWN
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Stored:
    """An entity at the end: the id of its last write, and how many there were from its creation."""

    last: str
    count: int


class Recorder:
    """Notes writes in a file.

    Args:
        path: of the file; of this recorder alone.
    """

    def __init__(self, path: Path) -> None:
        self._out = path.open("w")

    def about_to(self, write: Write) -> None:
        """It is about to be sent: whoever reads a note of its outcome knows what it was."""
        self._note(**{**vars(write), "outcome": write.outcome.value})

    def ended(self, write: Write, outcome: Outcome, error: BaseException | None = None) -> None:
        """Its outcome is known as far as it will be."""
        write.outcome = outcome
        write.error = "" if error is None else type(error).__name__
        self._note(id=write.id, outcome=outcome.value, error=write.error)

    def _note(self, **facts: object) -> None:
        self._out.write(json.dumps(facts) + "\n")
        self._out.flush()

    def close(self) -> None:
        self._out.close()


def read(paths: Iterable[Path]) -> list[Write]:
    """What several recorders have noted. A last line that breaks off is left out."""
    writes: dict[str, Write] = {}
    for path in paths:
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            facts = json.loads(line)
            outcome = Outcome(facts.pop("outcome"))
            if "operation" in facts:
                writes[facts["id"]] = Write(**facts)
            writes[facts["id"]].outcome = outcome
            writes[facts["id"]].error = facts["error"]
    return list(writes.values())
