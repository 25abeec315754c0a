"""Engines whose client may hang: each call is bounded (`userlock.bounded_calls`).

request             thread                  engine
wake, 0.3 s ──────▶ connect, send ────────▶ (does not answer)
its time is over
◀── an error for each message without an answer; the relay sends those again
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from userlock.bounded_calls import BoundedCalls
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.fork import reset_in_child
from userlock.outbox.engines import EngineError, Wake

#: The calls of an engine that may be under way in a process, hanging ones included.
MOST_CALLS = 64
_MOST_TEXT = 300

#: By the number of a message: None, the engine has taken it; or why not, or why that is unknown.
Outcomes = MutableMapping[int, object]


class BoundedEngine(abc.ABC):
    """Base of engines with a client. Thread-safe; a forked child opens one of its own."""

    def __init__(self, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self.clock = clock
        self._closed = False
        self._calls = BoundedCalls(MOST_CALLS, "userlock-engine")
        self._disown()
        reset_in_child(self._disown)

    def _disown(self) -> None:
        self._mutex = threading.Lock()
        self._client: Any = None

    @abc.abstractmethod
    def send(self, messages: Sequence[Wake], outcomes: Outcomes, ends: float) -> None:
        """Send messages, at least one, and note the outcome of each. In a thread of its own.

        `ends`: when nobody waits any more, by the clock. An error that is raised is that of all
        messages without an outcome.
        """

    @abc.abstractmethod
    def open_client(self) -> Any:
        """Return a client with connections of this process."""

    def close_client(self, client: Any) -> None:
        """Close the connections of a client of this process."""
        client.close()

    @property
    def client(self) -> Any:
        with self._mutex:
            if self._client is None:
                self._client = self.open_client()
            return self._client

    def connect(self, deliver: Callable[[str], object]) -> None:  # noqa: B027
        """Do nothing: a worker's process, or a web endpoint, delivers the messages."""

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        outcomes: dict[int, object] = {}
        rest: object = f"no answer within {timeout:.3g} s"
        if self._closed:
            rest = "the engine is closed"
        elif timeout <= 0:
            rest = "there was no time left"
        elif messages:
            ends = self.clock.now() + timeout
            try:
                self._calls.within(timeout, self.send, messages, outcomes, ends)
            except TimeoutError as error:
                rest = str(error) or type(error).__name__
            except Exception as error:
                rest = error
        known = dict(outcomes)  # the thread may go on
        return [self._error(known.get(index, rest)) for index in range(len(messages))]

    def _error(self, reason: object) -> EngineError | None:
        if reason is None:
            return None
        if isinstance(reason, BaseException):
            reason = f"{type(reason).__name__}: {reason}"
        return EngineError(f"{self.name}: {reason}"[:_MOST_TEXT])

    def close(self) -> None:
        """Close the connections; messages are refused from now on."""
        self._closed = True
        with self._mutex:
            client, self._client = self._client, None
        if client is not None:
            self.close_client(client)
