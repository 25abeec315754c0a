"""Engines: what calls a worker when a job is due. Cloud Tasks, RQ, threads of this process.

The row in Datastore is the truth. A message of an engine carries the key of a
row and nothing else, so a lost, late, early or second one does no harm: the
worker reads the row, and the relay asks again for rows that are still there.

An engine has two verbs: it takes messages (`wake`), and it delivers each of them
to the outbox (`deliver`, which it was given by `connect`, or the web endpoint).
`userlock.testing.EngineContract` is a test suite for engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Wake(NamedTuple):
    """A message.

    Attributes:
        key: the row's key, as text.
        name: its own, at random: an engine that knows names takes it once. Another message for the
            same row has another name, as the first one may be lost although it was taken. Letters
            and digits.
        delay: in seconds, from now. An engine may deliver at any other time.
    """

    key: str
    name: str
    delay: float = 0.0


class EngineError(Exception):
    """An engine has not taken a message, or it is unknown whether it has."""


@runtime_checkable
class Engine(Protocol):
    """An engine. Thread-safe, and usable in a forked child."""

    def connect(self, deliver: Callable[[str], object]) -> None:
        """Take the function that runs a row by its key, if this process is to run jobs."""
        ...

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        """Take messages; return an error, or None, for each. A name that it knows is no error.

        Args:
            messages: at most 100.
            timeout: for all, in seconds. Those left then have an error.
        """
        ...

    def close(self) -> None:
        """Give connections and threads back."""
        ...
