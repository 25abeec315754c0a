"""An ndb context with a lock service, and changes by other requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.ndb.actions import forget_reads
from tests.contract.ndb.models import Learner
from tests.contract.ndb.servers import Wire, connect
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock.events import LISTENERS, Event
from userlock.ndb import capabilities, commits


@pytest.fixture
def context(ndb_client: ndb.Client, service: userlock.LockService) -> Iterator[Any]:
    """Open an ndb context, with the lock service as the process's default."""
    with ndb_client.context() as context:
        # It is asked once in a process; not in the middle of a test, of its faults and its RPCs.
        capabilities.honours_base_version(ndb_client)
        yield context


@pytest.fixture
def key(context: Any) -> Any:
    """Return the key of an entity that exists and has not been read."""
    key = ndb.Key(Learner, "ann")
    with userlock.global_lock("ann"):
        Learner(key=key).put()
    forget_reads()
    return key


@pytest.fixture
def beside(
    ndb_client: ndb.Client, datastore: userlock_emulator.Emulator
) -> Callable[[Callable[[], None]], Started]:
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
def events(monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """Record every event, of the model layer and of the locks."""
    seen: list[Event] = []
    monkeypatch.setattr(LISTENERS, "_listeners", (*LISTENERS._listeners, seen.append))
    return seen


@pytest.fixture
def wire(context: Any, ndb_client: ndb.Client) -> Wire:
    """Record the traffic between client and server from now on."""
    return Wire(ndb_client)


@pytest.fixture
def server(context: Any, ndb_client: ndb.Client) -> Wire:
    """Record the requests that reach the server from now on."""
    return connect(ndb_client, Wire)


@pytest.fixture
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry soon."""
    monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.001)
    monkeypatch.setattr(ndb._retry, "_DEFAULT_MAXIMUM_DELAY", 0.001)
    monkeypatch.setattr(commits, "RESEND_DELAYS", (0.001,) * 3)
