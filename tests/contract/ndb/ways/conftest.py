"""One emulator, and one client, for the whole table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.cloud import ndb

import emulator


@pytest.fixture(scope="session")
def datastore() -> Iterator[emulator.Emulator]:
    """Ways in and ways out do not depend on how Datastore keeps transactions apart."""
    with emulator.start(concurrency_mode="optimistic") as server:
        yield server


@pytest.fixture(scope="session")
def connected(datastore: emulator.Emulator) -> ndb.Client:
    """A connection of its own for each test would take longer than the test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in datastore.env.items():
            patch.setenv(name, value)
        return ndb.Client()


@pytest.fixture
def ndb_client(datastore: emulator.Emulator, connected: ndb.Client) -> ndb.Client:
    """A client for an emulator with nothing in it."""
    datastore.reset()
    return connected


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.0)
