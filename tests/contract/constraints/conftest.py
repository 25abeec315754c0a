"""An ndb context with a lock service in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.servers import Wire
from userlock.ndb import capabilities, commits


@pytest.fixture
def context(ndb_client: ndb.Client, service: userlock.LockService) -> Iterator[Any]:
    with ndb_client.context() as context:
        capabilities.honours_base_version(ndb_client)  # asked once in a process
        yield context


@pytest.fixture
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry soon."""
    monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.001)
    monkeypatch.setattr(ndb._retry, "_DEFAULT_MAXIMUM_DELAY", 0.001)
    monkeypatch.setattr(commits, "RESEND_DELAYS", (0.001,) * 3)
    monkeypatch.setattr(commits, "_CLAIM_PAUSES", (0.001,) * 5)


@pytest.fixture
def wire(context: Any, ndb_client: ndb.Client) -> Wire:
    """Record the traffic between client and server from now on."""
    return Wire(ndb_client)
