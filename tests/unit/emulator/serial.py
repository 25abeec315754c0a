"""A check whether transactions, as seen from outside, can have run one after the other.

The checker does not depend on modes, locks or snapshots. It only uses the results of each
transaction's reads, its writes, and its begin and end. Writers are ordered by their commits'
versions. Each must have read the state just before its own commit. A read-only transaction must
have read the state at some moment between its begin and its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

#: An entity's name, and its value: a number to query by, and the writer.
State = Mapping[str, tuple[int, str]]
#: The result of a read in a given state.
Question = Callable[[State], object]


class NotSerializable(AssertionError):
    """A violation in a history."""


@dataclass
class Ran:
    """A committed transaction, or a put outside transactions.

    Attributes:
        name: unique, and part of its writes.
        began: the time before its first request, on a clock of the test.
        reads: each read with its result.
        writes: entities with their new values; None for deleted ones.
        version: the version of its commit; None if it wrote nothing.
        ended: the time after its last reply.
    """

    name: str
    began: float
    reads: list[tuple[Question, object]] = field(default_factory=list)
    writes: dict[str, tuple[int, str] | None] = field(default_factory=dict)
    version: int | None = None
    ended: float = 0.0

    def agrees_with(self, state: State) -> bool:
        """Return whether its reads agree with the state."""
        return all(question(state) == answer for question, answer in self.reads)


def check(history: Sequence[Ran]) -> None:
    """Check a history that began with an empty database.

    Raises:
        NotSerializable: names the transaction that fits nowhere in the order.
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
        # It sees all writes acknowledged before its begin, and none that began after its end.
        earliest = sum(writer.ended < reader.began for writer in writers)
        latest = sum(writer.began < reader.ended for writer in writers)
        if not any(reader.agrees_with(state) for state in states[earliest : latest + 1]):
            raise NotSerializable(f"{reader.name} did not read any state that there was")


def _version(ran: Ran) -> int:
    assert ran.version is not None
    return ran.version


def _states(writers: Iterable[Ran]) -> Iterable[State]:
    """Yield the states before the first writer, between them, and after the last."""
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
