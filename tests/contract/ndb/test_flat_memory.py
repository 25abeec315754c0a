"""A process that serves many requests needs no more memory after the last than after a fifth."""

from __future__ import annotations

import contextlib
import gc
import logging
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as messages

import userlock
from benchmarks import instant
from userlock.ndb import stub, writes
from userlock.stores import MemoryStore

#: Blocks of memory that Python may have more for each of a few hundred requests: what each of them
#: leaves is one at least.
NONE_EACH = 0.5
#: The same for each of thousands, where caches that fill up count for nothing.
FLAT = 0.05
#: Bytes that the whole process may have more in the end: C++ has no objects that Python counts.
FLAT_BYTES = 4_000_000

_VERSION = 7


class Visitor(userlock.UserModel):
    """Locked by its own key's name."""

    _lock_id_from_key = userlock.key_id

    points = ndb.IntegerProperty(default=0)


class Datastore(instant.InstantDatastore):
    """Answers each look-up of a visitor, and refuses a commit if it is told to."""

    refuses = False

    def _lookup(self, request: Any) -> object:
        sent: Any = request._pb
        response: Any = messages.LookupResponse.pb()()
        for key in sent.keys:
            found = response.found.add(version=_VERSION)
            found.entity.key.CopyFrom(key)
            found.entity.properties["points"].integer_value = 1
        if sent.read_options.HasField("new_transaction"):
            response.transaction = self._new_id()
        return messages.LookupResponse.wrap(response)

    def _commit(self, request: Any) -> object:
        response: Any = messages.CommitResponse.pb()()
        for _ in request._pb.mutations:
            response.mutation_results.add(version=_VERSION + 1, conflict_detected=self.refuses)
        return messages.CommitResponse.wrap(response)


class Site:
    """Requests of a site, each of another user."""

    def __init__(self) -> None:
        self.datastore = Datastore()
        self._client = instant.client(self.datastore)
        self._service = userlock.LockService(MemoryStore())

    def serve(self, number: int) -> None:
        """Serve a request."""
        with self.context():
            self.work(f"visitor-{number}")

    def context(self) -> Any:
        return self._client.context()

    def work(self, user: str) -> None:
        """Get, change and put; put and do not wait; in a transaction; delete; be refused."""
        with userlock.scope(self._service), userlock.global_lock(user):
            key = ndb.Key(Visitor, user)
            self._change(key)
            visitor = key.get()
            visitor.points += 1
            visitor.put_async()
            ndb.transaction(lambda: self._change(key))
            key.delete()
            visitor = key.get(use_cache=False)
            self.datastore.refuses = True
            with contextlib.suppress(userlock.StaleWriteError):
                visitor.put()
            self.datastore.refuses = False

    def _change(self, key: Any) -> None:
        visitor = key.get()
        visitor.points += 1
        visitor.put()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    # pytest keeps each record.
    monkeypatch.setattr(logging.getLogger("userlock"), "disabled", True)
    monkeypatch.setattr("userlock.ndb.writes.honours_base_version", lambda client: True)
    yield Site()
    gc.collect()


def growth(serve: Callable[[int], None], requests: int) -> tuple[float, float]:
    """Serve requests. Returns the blocks that each of the last 80 % has added, and their bytes."""
    warm = requests // 5
    for number in range(warm):
        serve(number)
    before = _used()
    for number in range(warm, requests):
        serve(number)
    after = _used()
    return (after[0] - before[0]) / (requests - warm), after[1] - before[1]


def _used() -> tuple[int, int]:
    gc.collect()
    return sys.getallocatedblocks(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_some_hundred_requests(site: Site) -> None:
    blocks, _ = growth(site.serve, 400)
    assert blocks < NONE_EACH


def test_some_hundred_rounds_of_work_in_one_context(site: Site) -> None:
    with site.context():
        blocks, _ = growth(lambda _: site.work("ann"), 400)
    assert blocks < NONE_EACH


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param(5_000, marks=pytest.mark.slow),
        pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_as_many_as_in_a_day(site: Site, requests: int) -> None:
    blocks, size = growth(site.serve, requests)
    assert blocks < FLAT
    assert size < FLAT_BYTES


def test_if_writes_were_kept_it_would_grow(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the gate lets a write pass, and does not forget it."""
    kept: list[Any] = []
    redeem = writes.redeem

    def keep(key: Any) -> Any:
        write = redeem(key)
        kept.append(write)
        return write

    monkeypatch.setattr(stub, "redeem", keep)
    blocks, _ = growth(site.serve, 200)
    assert blocks > 20
