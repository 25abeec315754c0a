"""The memory of each entity's stamp: little beside the entity, and gone with it."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from benchmarks import instant
from benchmarks.models import LOCK_ID, LockedLearner, PlainLearner, message
from userlock.ndb.provenance import Stamp, stamp_read
from userlock.stores import MemoryStore

_TOGETHER = 200
#: Bytes of each entity that a request has read.
_OF_THE_LEDGER = 500


@contextlib.contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of bytes in use since the beginning."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]

        def more() -> int:
            gc.collect()
            return tracemalloc.get_traced_memory()[0] - before

        yield more
    finally:
        tracemalloc.stop()


class Reader:
    """Reads the same entities again and again, all of one user."""

    def __init__(self, model: Any) -> None:
        self._datastore = instant.InstantDatastore()
        self.client = instant.client(self._datastore)
        self._model = model
        with self.client.context():
            self.wire = [message(model, f"entity-{number}") for number in range(_TOGETHER)]

    def prepare(self) -> None:
        """Prepare the answer to the next query, and empty the cache."""
        self._datastore.queries.append(instant.queried(self.wire))
        ndb.get_context().cache.clear()

    def read(self) -> list[Any]:
        self.prepare()
        entities: list[Any] = self._model.query().fetch()
        assert len(entities) == _TOGETHER
        return entities


@contextlib.contextmanager
def reading(model: Any) -> Iterator[Reader]:
    reader = Reader(model)
    userlock.configure(service=userlock.LockService(MemoryStore()))
    with reader.client.context(), userlock.scope(), userlock.global_lock(LOCK_ID):
        reader.read()  # what is made once
        yield reader


def bytes_of_each(model: Any) -> float:
    with reading(model) as reader, traced() as more:
        entities = reader.read()
        bytes_of_all = more()
        del entities
        ndb.get_context().cache.clear()
        left = more()
    assert left < _OF_THE_LEDGER * _TOGETHER, "the stamp of an entity is released with it"
    return bytes_of_all / _TOGETHER


def test_an_entity_takes_at_most_a_tenth_more() -> None:
    tracked, plain = bytes_of_each(LockedLearner), bytes_of_each(PlainLearner)
    assert plain > 1_000
    assert tracked <= plain * 1.1


def growth(reads: int) -> int:
    """Return the memory that reads of dropped entities leave in one scope, in bytes."""
    with reading(LockedLearner) as reader, traced() as more:
        for _ in range(reads):
            reader.read()
        ndb.get_context().cache.clear()
        return more()


def test_nothing_is_left_of_reads() -> None:
    """The ledger keeps a bounded number of them."""
    assert growth(4) - growth(1) < 10_000


def test_a_leak_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    kept: list[Stamp] = []

    def keep(entity: Any, *args: Any) -> Stamp:
        kept.append(stamp_read(entity, *args))
        return kept[-1]

    monkeypatch.setattr("userlock.ndb.hooks.stamp_read", keep)
    assert growth(4) - growth(1) > 40_000
