"""Datastore rows against the emulator over gRPC; time passes in the server, by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from google.cloud import ndb

import userlock_emulator
from tests.contract.stores.datastore.faulty import FaultyClient
from tests.leases import existing
from userlock.lock.store import LeaseStore, Stored
from userlock.stores.datastore import DatastoreStore
from userlock.testing import ManualClock


class ServerClock:
    """The server's clock: real time, and what a test has let pass by hand."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> int:
        return time.time_ns() // 1000 + int(self.ahead * 1_000_000)


SERVER_CLOCK = ServerClock()
#: For tests that are not about time-outs, on a busy machine; in seconds.
PATIENT = 10.0


class UserLockLease(ndb.Expando):
    """For reading rows with ndb, which wants a class for every kind."""


@pytest.fixture(scope="session")
def concurrency_mode(request: pytest.FixtureRequest) -> str:
    """Use the mode of new databases, unless a test is for others too."""
    mode: str = getattr(request, "param", "pessimistic")
    return mode


#: For tests of concurrency: each mode treats a commit beside transactions in its own way.
OTHER_MODES = pytest.mark.parametrize(
    "concurrency_mode",
    [
        pytest.param(mode, marks=pytest.mark.slow)
        for mode in ("optimistic", "optimistic-with-entity-groups")
    ],
    indirect=True,
    scope="session",
)


@pytest.fixture(scope="session")
def server(concurrency_mode: str) -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start(concurrency_mode=concurrency_mode, now=SERVER_CLOCK) as running:
        yield running


@pytest.fixture
def client(server: userlock_emulator.Emulator, monkeypatch: pytest.MonkeyPatch) -> ndb.Client:
    server.reset()
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    return ndb.Client()


@pytest.fixture
def faulty(client: ndb.Client) -> FaultyClient:
    return FaultyClient(client)


@pytest.fixture
def store(client: ndb.Client) -> DatastoreStore:
    return DatastoreStore(client, timeout=PATIENT)


@pytest.fixture
def faulty_store(faulty: FaultyClient, clock: ManualClock) -> DatastoreStore:
    """Its pauses take no time."""
    return DatastoreStore(faulty, clock=clock)


class Rig(NamedTuple):
    """A store, and another one on the same rows whose RPCs fail as planned."""

    store: DatastoreStore
    faulty_store: DatastoreStore
    faulty: FaultyClient
    clock: ManualClock


@pytest.fixture
def rig(
    store: DatastoreStore, faulty_store: DatastoreStore, faulty: FaultyClient, clock: ManualClock
) -> Rig:
    return Rig(store, faulty_store, faulty, clock)


def read(store: LeaseStore, lock_id: str = "ann") -> Stored:
    return existing(store.read(lock_id))
