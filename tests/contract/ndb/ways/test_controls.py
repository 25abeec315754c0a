"""The negative control: without the hook that sees to it, a row of the table fails."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud.ndb import _cache, _datastore_api, _datastore_query, key
from google.cloud.ndb import model as ndb_model

import userlock
from tests.contract.ndb.ways import lookups, queries, writes
from tests.contract.ndb.ways.cells import differences
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.situations import BASIC
from tests.contract.ndb.ways.tables import Hook, WayIn, WayOut

pytestmark = pytest.mark.usefixtures("context")

_LOOKUP_BATCH = _datastore_api._LookupBatch
_QUERY = _datastore_query._QueryIteratorImpl
_MODEL = userlock.Model

Points = tuple[tuple[Any, str], ...]

MAKING: Points = ((ndb_model, "_entity_from_protobuf"),)
SENDING: Points = ((_LOOKUP_BATCH, "idle_callback"), (_LOOKUP_BATCH, "lookup_callback"))
ASKING: Points = ((_datastore_api, "lookup"),)
ITERATING: Points = ((_QUERY, "__init__"), (_QUERY, "_next_batch"))
TAKING: Points = ((_datastore_query._Result, "entity"),)
PUTTING: Points = (
    *((_MODEL, "_put_async"), (_MODEL, "put_async")),
    *((ndb_model.Model, "_put_async"), (ndb_model.Model, "put_async")),
)
DELETING: Points = ((key.Key, "delete_async"),)

#: What each consists of: functions of ndb that are replaced, methods of its model that are
#: overridden.
POINTS: dict[Hook, Points] = {
    Hook.LOOKUP: SENDING + ASKING,
    Hook.QUERY: ITERATING + TAKING,
    Hook.CONTEXT_CACHE: ((_cache.ContextCache, "get_and_validate"),),
    Hook.GLOBAL_CACHE: ASKING,
    Hook.COPY: ((_MODEL, "__copy__"), (_MODEL, "__deepcopy__")),
    Hook.PICKLE: ((_MODEL, "__getstate__"), (_MODEL, "__setstate__")),
    Hook.CREATION: ((_MODEL, "_get_or_insert_async"), (_MODEL, "get_or_insert_async")),
    Hook.PUT: PUTTING,
}


def take_away(monkeypatch: pytest.MonkeyPatch, points: Points) -> None:
    """ndb does again what it did before."""
    for owner, name in points:
        if owner is _MODEL:
            monkeypatch.delattr(owner, name)
        else:
            monkeypatch.setattr(owner, name, getattr(owner, name).__wrapped__)


@pytest.mark.parametrize("way_in", WAYS_IN, ids=lambda way: way.name)
def test_without_its_hook_a_way_in_fails(way_in: WayIn, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, POINTS[way_in.hook])
    assert differences(way_in, [_way_out(writes.put)], BASIC) != []


@pytest.mark.parametrize("way_out", WAYS_OUT, ids=lambda way: way.name)
def test_without_its_hook_a_way_out_fails(way_out: WayOut, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, DELETING if way_out.deletes else PUTTING)
    assert differences(_way_in(lookups.get), [way_out], BASIC) != []


@pytest.mark.parametrize(
    ("points", "read"),
    [
        (MAKING, lookups.get),
        (SENDING, lookups.get),
        (ASKING, lookups.get),
        (ITERATING, queries.fetch),
        (TAKING, queries.fetch),
    ],
    ids=["making", "sending", "asking", "iterating", "taking"],
)
def test_each_part_of_a_hook_is_needed(
    points: Points, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, points)
    assert differences(_way_in(read), [_way_out(writes.put)], BASIC) != []


def _way_in(read: Any) -> WayIn:
    (found,) = [way for way in WAYS_IN if way.read is read]
    return found


def _way_out(write: Any) -> WayOut:
    (found,) = [way for way in WAYS_OUT if way.write is write]
    return found
