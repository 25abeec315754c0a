"""The code of a page of the cookbook, with locks in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.documents import Block
from userlock.constraints.rows import ClaimRow
from userlock.deletion.rows import DeletionRow
from userlock.ndb import commits
from userlock.stores import MemoryStore

#: Runs a block of a page, in an ndb context.
Cook = Callable[[Block], dict[str, Any]]


@pytest.fixture
def cook(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cook]:
    kinds = {each._get_kind(): each for each in (ClaimRow, DeletionRow)}
    monkeypatch.setattr(ndb.Model, "_kind_map", {**ndb.Model._kind_map, **kinds})
    monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.001)
    monkeypatch.setattr(ndb._retry, "_DEFAULT_MAXIMUM_DELAY", 0.001)
    monkeypatch.setattr(commits, "RESEND_DELAYS", (0.001,) * 3)
    service = userlock.LockService(MemoryStore())
    userlock.configure(service=service)
    monkeypatch.setattr(userlock.LockService, "from_url", staticmethod(lambda *_, **__: service))
    with ndb_client.context(cache_policy=False):
        yield lambda block: block.run({"__name__": "cookbook"})


class Died(BaseException):
    """The process ends here."""
