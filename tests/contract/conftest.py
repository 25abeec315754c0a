"""ndb against the emulator in this process, locks in memory, time by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.ndb.servers import Wire
from userlock.events import LISTENERS
from userlock.ndb import capabilities, commits, direct
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

#: `make test` runs the mode of new databases, `make test-all` the others as well.
_MODES = ("pessimistic", pytest.param("optimistic", marks=pytest.mark.slow))


@pytest.fixture(scope="session", params=_MODES)
def concurrency_mode(request: pytest.FixtureRequest) -> str:
    """Provide Datastore's concurrency modes: of older databases, and of new ones."""
    mode: str = request.param
    return mode


#: For tests of transactions: in the legacy mode as well.
EACH_MODE = pytest.mark.parametrize(
    "concurrency_mode",
    [*_MODES, pytest.param("optimistic-with-entity-groups", marks=pytest.mark.slow)],
    indirect=True,
    scope="session",
)


@pytest.fixture(scope="session")
def datastore(concurrency_mode: str) -> Iterator[userlock_emulator.Emulator]:
    """Provide one emulator for all tests; `ndb_client` empties it."""
    with userlock_emulator.start(concurrency_mode=concurrency_mode) as server:
        yield server


@pytest.fixture
def ndb_client(
    datastore: userlock_emulator.Emulator, monkeypatch: pytest.MonkeyPatch
) -> ndb.Client:
    """Provide a client for an empty emulator."""
    datastore.reset()
    for name, value in datastore.env.items():
        monkeypatch.setenv(name, value)
    return ndb.Client()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def service(store: MemoryStore, clock: ManualClock) -> userlock.LockService:
    """Provide locks in memory, as the process's default."""
    service = userlock.LockService(store, clock=clock)
    userlock.configure(service=service)
    return service


@pytest.fixture
def context(ndb_client: ndb.Client, service: userlock.LockService) -> Iterator[Any]:
    """Open an ndb context, with the lock service as the process's default."""
    with ndb_client.context() as context:
        # It is asked once in a process; not in the middle of a test, of its faults and its RPCs.
        capabilities.honours_base_version(ndb_client)
        yield context


@pytest.fixture
def wire(context: Any, ndb_client: ndb.Client) -> Wire:
    """Record the traffic between client and server from now on."""
    return Wire(ndb_client)


@pytest.fixture
def own_listeners() -> Iterator[None]:
    """Take away the listeners that a test, or an inspector in it, has added."""
    before = LISTENERS._listeners
    yield
    LISTENERS._listeners = before


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a lost reply, a conflict or an outage, ask again at once."""
    monkeypatch.setattr(commits, "RESEND_DELAYS", (0.0,) * 3)
    monkeypatch.setattr(commits, "_CLAIM_PAUSES", (0.001,) * 5)
    for policy, first, most in (
        (ndb._retry, "_DEFAULT_INITIAL_DELAY", "_DEFAULT_MAXIMUM_DELAY"),
        (direct.again, "_initial", "_maximum"),
    ):
        monkeypatch.setattr(policy, first, 0.001)
        monkeypatch.setattr(policy, most, 0.001)


@pytest.fixture
def elsewhere(ndb_client: ndb.Client) -> Callable[[Callable[[], None]], None]:
    """Run something as another process would: another thread, channel, ndb context and scope."""

    def run(action: Callable[[], None]) -> None:
        errors: list[BaseException] = []

        def target() -> None:
            try:
                # Its own channel: a commit may be sent by the thread that serves the other one.
                client = ndb.Client(namespace=ndb_client.namespace, database=ndb_client.database)
                with client.context():
                    action()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    return run
