"""An ndb context with a lock service, and changes by other requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import Elsewhere, Overtake, forget_reads
from tests.contract.ndb.models import Learner
from tests.contract.ndb.servers import Wire, connect
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock.events import LISTENERS, Event
from userlock.stores import MemoryStore
from userlock_emulator import Emulator


@pytest.fixture
def key(context: Any) -> Any:
    """Return the key of an entity that exists and has not been read."""
    key = ndb.Key(Learner, "ann")
    with userlock.global_lock("ann"):
        Learner(key=key).put()
    forget_reads()
    return key


@pytest.fixture
def beside(ndb_client: ndb.Client, datastore: Emulator) -> Callable[[Callable[[], None]], Started]:
    """Act as `elsewhere` does, and go on if that has to wait for a transaction of ours."""

    def run(action: Callable[[], None]) -> Started:
        def target() -> None:
            with ndb_client.context():
                action()

        started = Started(target)
        wait_until(lambda: started.done or datastore.waiting)
        return started

    return run


@pytest.fixture
def overtake(store: MemoryStore, elsewhere: Elsewhere) -> Overtake:
    """Let the store forget ann's lock, and another request act."""

    def run(action: Callable[[], None]) -> None:
        store.evict("ann")
        elsewhere(action)

    return run


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Record every event, of the model layer and of the locks."""
    seen: list[Event] = []
    monkeypatch.setattr(LISTENERS, "_listeners", (*LISTENERS._listeners, seen.append))
    return seen


@pytest.fixture
def server(context: Any, ndb_client: ndb.Client) -> Wire:
    """Record the requests that reach the server from now on."""
    return connect(ndb_client, Wire)
