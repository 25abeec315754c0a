"""One emulator for the whole table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.cloud import ndb

import userlock_emulator


@pytest.fixture(scope="session")
def datastore() -> Iterator[userlock_emulator.Emulator]:
    """Provide one emulator: ways in and out do not depend on the concurrency mode."""
    with userlock_emulator.start(concurrency_mode="optimistic") as server:
        yield server


@pytest.fixture(autouse=True)
def _retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.0)
