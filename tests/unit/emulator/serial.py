"""Whether transactions, as they were seen from outside, can have run one after the other.

The checker knows nothing of modes, locks or snapshots: only what each
transaction was told when it read, what it wrote, and when it began and ended.
Writers have an order, that of their commits' versions. Each must have read what
stood there just before its own commit; a transaction that only read, what stood
there at some moment between its beginning and its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: An entity's name, and what is written to it: a number to query by, and who wrote it.
State = Mapping[str, tuple[int, str]]
#: What a read would be told in a given state.
Question = Callable[[State], object]


class NotSerializable(AssertionError):
    """What was found in a history that must not be there."""


@dataclass
class Ran:
    """A transaction that was committed, or a put outside of any.

    Attributes:
        name: unique; what it writes carries it.
        began: before its first request, on a clock of the test.
        reads: each question with the answer that it was given.
        writes: entities with what became of them; None for those that were deleted.
        version: of its commit; None if it wrote nothing.
        ended: after its last reply.
    """

    name: str
    began: float
    reads: list[tuple[Question, object]] = field(default_factory=list)
    writes: dict[str, tuple[int, str] | None] = field(default_factory=dict)
    version: int | None = None
    ended: float = 0.0

    def agrees_with(self, state: State) -> bool:
        """Whether it was told what stands there."""
        return all(question(state) == answer for question, answer in self.reads)


def check(history: Sequence[Ran]) -> None:
    """Check a history that began with nothing stored.

    Raises:
        NotSerializable: says which transaction cannot be put in line.
    """
    writers = sorted((ran for ran in history if ran.version is not None), key=_version)
    for before, after in itertools.pairwise(writers):
        if _version(before) == _version(after):
            raise NotSerializable(f"{before.name} and {after.name} have one version")
        if after.ended < before.began:
            raise NotSerializable(f"{after.name} had ended before {before.name} began")
    states = list(_states(writers))
    for position, writer in enumerate(writers):
        if not writer.agrees_with(states[position]):
            raise NotSerializable(f"{writer.name} did not read what it was written on")
    for reader in (ran for ran in history if ran.version is None):
        # What had been acknowledged before it began is there, what began after its end is not.
        earliest = sum(writer.ended < reader.began for writer in writers)
        latest = sum(writer.began < reader.ended for writer in writers)
        if not any(reader.agrees_with(state) for state in states[earliest : latest + 1]):
            raise NotSerializable(f"{reader.name} did not read any state that there was")


def _version(ran: Ran) -> int:
    assert ran.version is not None
    return ran.version


def _states(writers: Iterable[Ran]) -> Iterable[State]:
    """What is stored before the first one, between them, and after the last."""
    state: dict[str, tuple[int, str]] = {}
    yield state
    for writer in writers:
        state = dict(state)
        for name, written in writer.writes.items():
            if written is None:
                state.pop(name, None)
            else:
                state[name] = written
        yield state
