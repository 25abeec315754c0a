"""A service with recorded events."""

from __future__ import annotations

from typing import Any, TypeVar

import userlock
from userlock.events import Event, Listeners
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore, ShardedMemcacheStore

_E = TypeVar("_E", bound=Event)


class Watched:
    """A lock service on memcached, or another store, like that of another process."""

    def __init__(
        self,
        *addresses: str,
        prefix: str = "test",
        store: LeaseStore | None = None,
        **options: Any,
    ) -> None:
        self.events: list[Event] = []
        if store is None:
            servers = [MemcacheStore(address, prefix=prefix) for address in addresses]
            store = servers[0] if len(servers) == 1 else ShardedMemcacheStore(servers)
        self.service = userlock.LockService(
            store, listeners=Listeners([self.events.append]), **options
        )

    def of(self, kind: type[_E]) -> list[_E]:
        """Return the events of a kind, so far."""
        return [event for event in self.events if isinstance(event, kind)]
