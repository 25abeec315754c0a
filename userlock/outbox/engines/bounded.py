"""Engines whose client may hang: each call is bounded (`userlock.bounded_calls`).

request             thread                  engine
wake, 0.3 s ──────▶ connect, send ────────▶ (does not answer)
its time is over
◀── an error for each message without an answer; the relay sends those again
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence

from userlock.bounded_calls import BoundedCalls
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.fork import reset_in_child
from userlock.outbox.engines import EngineError, Wake

#: The calls of an engine that may be under way in a process, hanging ones included.
MOST_CALLS = 64
_MOST_TEXT = 300


class Outcomes:
    """The outcomes of the messages of one call. Shared by two threads.

    Args:
        name: the engine's.
        count: how many messages there are.
        reason: the error of those without an answer.
    """

    def __init__(self, name: str, count: int, reason: object) -> None:
        self._name = name
        self._count = count
        self._known: dict[int, EngineError | None] = {}
        self.rest_failed(reason)

    def taken(self, index: int) -> None:
        """Note that the engine has taken a message."""
        self._known[index] = None

    def failed(self, index: int, reason: object) -> None:
        """Note that it has not, or that this is unknown."""
        self._known[index] = self._error(reason)

    def rest_failed(self, reason: object) -> None:
        """Note the error of all messages without another outcome."""
        self._rest = self._error(reason)

    def all(self) -> list[EngineError | None]:
        """Return an error, or None, for each message."""
        known, rest = dict(self._known), self._rest
        return [known.get(index, rest) for index in range(self._count)]

    def _error(self, reason: object) -> EngineError:
        if isinstance(reason, BaseException):
            reason = f"{type(reason).__name__}: {reason}"
        return EngineError(f"{self._name}: {reason}"[:_MOST_TEXT])


class BoundedEngine(abc.ABC):
    """Base of engines with a client. Thread-safe; a forked child opens connections of its own."""

    def __init__(self, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self.clock = clock
        self._closed = False
        self._calls = BoundedCalls(MOST_CALLS, "userlock-engine")
        self.disown()
        reset_in_child(self.disown)

    @abc.abstractmethod
    def send(self, messages: Sequence[Wake], outcomes: Outcomes, ends: float) -> None:
        """Send messages, and note the outcome of each. In a thread of its own.

        Args:
            messages: at least one.
            outcomes: of the messages.
            ends: when nobody waits any more, by the clock.

        Raises:
            Exception: the reason for all messages without an outcome.
        """

    @abc.abstractmethod
    def disown(self) -> None:
        """Begin without connections: at first, and in a forked child. Closes none."""

    @abc.abstractmethod
    def disconnect(self) -> None:
        """Close the connections of this process."""

    def connect(self, deliver: Callable[[str], object]) -> None:  # noqa: B027
        """Do nothing: a worker's process, or a web endpoint, delivers the messages."""

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        """Send messages; return an error, or None, for each."""
        outcomes = Outcomes(self.name, len(messages), f"no answer within {timeout:.3g} s")
        if not messages:
            return []
        if self._closed:
            outcomes.rest_failed("the engine is closed")
        elif timeout <= 0:
            outcomes.rest_failed("there was no time left")
        else:
            ends = self.clock.now() + timeout
            try:
                self._calls.within(timeout, self.send, messages, outcomes, ends)
            except TimeoutError as error:
                outcomes.rest_failed(str(error) or type(error).__name__)
            except Exception as error:
                outcomes.rest_failed(error)
        return outcomes.all()

    def close(self) -> None:
        """Close the connections; messages are refused from now on."""
        self._closed = True
        self.disconnect()
