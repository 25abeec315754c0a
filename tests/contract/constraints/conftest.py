"""An ndb context with a lock service in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.servers import Wire
from userlock.ndb import capabilities


@pytest.fixture
def context(ndb_client: ndb.Client, service: userlock.LockService) -> Iterator[Any]:
    with ndb_client.context() as context:
        capabilities.honours_base_version(ndb_client)  # asked once in a process
        yield context


@pytest.fixture
def wire(context: Any, ndb_client: ndb.Client) -> Wire:
    """Record the traffic between client and server from now on."""
    return Wire(ndb_client)
