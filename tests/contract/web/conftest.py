"""Provide a lock service in memory, with a manual clock."""

from __future__ import annotations

import pytest

import userlock
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.fixture(scope="session")
def concurrency_mode() -> str:
    """Return one mode: requests and answers do not depend on it."""
    return "pessimistic"


@pytest.fixture
def service(store: MemoryStore, clock: ManualClock) -> userlock.LockService:
    return userlock.LockService(store, clock=clock)
