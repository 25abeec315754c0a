"""A service with recorded events."""

from __future__ import annotations

from typing import Any, TypeVar

import userlock
from userlock.events import Event, Listeners
from userlock.lock.store import LeaseStore

_E = TypeVar("_E", bound=Event)


class Watched:
    """A lock service like that of another process."""

    def __init__(self, store: LeaseStore, **options: Any) -> None:
        self.events: list[Event] = []
        self.service = userlock.LockService(
            store, listeners=Listeners([self.events.append]), **options
        )

    def of(self, kind: type[_E]) -> list[_E]:
        """Return the events of a kind, so far."""
        return [event for event in self.events if isinstance(event, kind)]
