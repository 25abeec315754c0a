"""The negative controls: with a protection off, cells of the table that were right are wrong.

All ways meet at three RPCs: Lookup and RunQuery, where what comes in gets its
stamp, and Commit, where what goes out needs its ticket. So a few rows and
columns for each protection show that the table would notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import model as ndb_model

import userlock
from tests.contract.ndb.servers import Wire
from tests.contract.ndb.ways import copies, lookups, queries, surroundings, writes
from tests.contract.ndb.ways.cells import differences
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.lookups import key_of
from tests.contract.ndb.ways.models import Person
from tests.contract.ndb.ways.situations import BASIC, OTHERS, Situation
from tests.contract.ndb.ways.tables import Hook, WayIn, WayOut, by_somebody_else
from userlock.ndb import fencing, hooks, model, stub, writing
from userlock.ndb.enforcement import suppressed

pytestmark = pytest.mark.usefixtures("context")

_MODEL = userlock.Model

Patch = pytest.MonkeyPatch
Off = Callable[[Patch], None]


# --- each protection, taken away --------------------------------------------------------------


def gate_off(patch: Patch) -> None:
    """Commits pass as they are."""
    patch.setitem(stub._GATED, "commit", stub._Method)


def tickets_off(patch: Patch) -> None:
    """Writes go to the commit without theirs; not those by which a cell is arranged."""
    patch.setattr(
        hooks, "ticketed_key", lambda key: writing.ticketed_key(key) if suppressed() else key
    )


def inserts_off(patch: Patch) -> None:
    """New entities are sent as ndb sends them, and overwrite existing ones."""
    _change_tickets(patch, fencing.PutTicket, must_be_new=False, may_overwrite=False)


def versions_off(patch: Patch) -> None:
    """Writes do not say which version they build on."""
    _change_tickets(patch, fencing.Ticket, base_version=0)


def _change_tickets(patch: Patch, kind: Any, **facts: object) -> None:
    begin = kind.__init__

    def changed(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        vars(self).update(facts)

    patch.setattr(kind, "__init__", changed)


def lookup_stamps_off(patch: Patch) -> None:
    """Looked-up entities have no stamp."""
    patch.setitem(stub._GATED, "lookup", stub._Method)


def query_stamps_off(patch: Patch) -> None:
    """Entities that a query finds have no stamp."""
    patch.setitem(stub._GATED, "run_query", stub._Method)


def stamps_off(patch: Patch) -> None:
    """Nothing that is made of a message is stamped."""
    patch.setattr(hooks, "stamp_read", lambda *args: None)


def stamps_of_puts_off(patch: Patch) -> None:
    """An object does not know the version that it landed as."""
    patch.setattr(fencing, "restamp", lambda *args, **kwargs: None)


def context_cache_check_off(patch: Patch) -> None:
    """The context cache answers with all that it has."""
    patch.setattr(hooks, "_is_good", lambda key, entity: True)


def global_cache_check_off(patch: Patch) -> None:
    """The global cache answers also under a lock."""
    patch.setattr(hooks, "bypass_global_cache", lambda: False)


def stamps_in_the_global_cache_off(patch: Patch) -> None:
    """Entities in the global cache have no version."""
    patch.setattr(stub, "put_number", lambda message, number: None)


def second_look_off(patch: Patch) -> None:
    """Entities without a version in the global cache are taken as they are."""
    patch.setattr(hooks, "_get_with_version", lambda key, get, kwargs: get(**kwargs))


def copies_off(patch: Patch) -> None:
    """Copies are made as Python makes them."""
    for name in ("__copy__", "__deepcopy__"):
        patch.delattr(_MODEL, name)


def pickles_off(patch: Patch) -> None:
    """Pickles are made as ndb makes them."""
    for name in ("__getstate__", "__setstate__"):
        patch.delattr(_MODEL, name)


def place_of_creation_off(patch: Patch) -> None:
    """`get_or_insert` is ndb's."""
    patch.delattr(_MODEL, "get_or_insert_async")


def put_check_off(patch: Patch) -> None:
    """A put is not held against what was read."""
    patch.setattr(model, "check_put", lambda entity, stamp, now: (entity.key.id(), ()))


def delete_check_off(patch: Patch) -> None:
    """A delete is not held against what is held."""
    patch.setattr(hooks, "check_delete", lambda cls, key, stamp, now: (key.id(), None))


def base_class_off(patch: Patch) -> None:
    """`ndb.Model.put_async` is ndb's."""
    put_async = ndb_model.Model._put_async.__wrapped__
    for name in ("_put_async", "put_async"):
        patch.setattr(ndb_model.Model, name, put_async)


# --- what each row needs ----------------------------------------------------------------------

#: What of userlock's a way in needs, by the name that the way in gives it.
NEEDS: dict[Hook, Off] = {
    Hook.LOOKUP: lookup_stamps_off,
    Hook.QUERY: query_stamps_off,
    Hook.CONTEXT_CACHE: context_cache_check_off,
    Hook.GLOBAL_CACHE: global_cache_check_off,
    Hook.COPY: copies_off,
    Hook.PICKLE: pickles_off,
    Hook.CREATION: place_of_creation_off,
    Hook.PUT: put_check_off,
}


@pytest.mark.parametrize("way_in", WAYS_IN, ids=lambda way: way.name)
def test_each_row_needs_its_protection(way_in: WayIn, monkeypatch: Patch) -> None:
    # What was read under no lock is what an object without a stamp counts as.
    off = stamps_off if way_in.read is surroundings.thread else NEEDS[way_in.hook]
    off(monkeypatch)
    assert differences(way_in, [_way_out(writes.put)], BASIC) != []


@pytest.mark.parametrize("way_out", WAYS_OUT, ids=lambda way: way.name)
def test_each_column_needs_its_check(way_out: WayOut, monkeypatch: Patch) -> None:
    (delete_check_off if way_out.deletes else put_check_off)(monkeypatch)
    assert differences(_way_in(lookups.get), [way_out], BASIC) != []


@pytest.mark.parametrize(
    "way_out", [way for way in WAYS_OUT if not way.holds_nothing], ids=lambda way: way.name
)
def test_each_column_needs_its_ticket(way_out: WayOut, monkeypatch: Patch) -> None:
    """Whatever way it is written: what has none does not land."""
    tickets_off(monkeypatch)
    found = differences(_way_in(lookups.get), [way_out], [_situation("under the lock")])
    assert any("nothing expected, WriteNotFenced" in line for line in found), found
    left = f"0 points are stored, not {None if way_out.deletes else 5}"
    assert any(left in line for line in found), found


# --- what each protection is for --------------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """A protection, cells that need it, and what is wrong with one of them without it.

    Attributes:
        off: takes it away.
        read: the way in.
        write: the way out.
        situation: the situation of the cell.
        says: what is found then.
    """

    off: Off
    read: Any
    write: Any
    situation: str
    says: str

    def __str__(self) -> str:
        return f"{self.off.__name__}: {self.read.__name__}, {self.write.__name__}, {self.situation}"


_CHANGED = "changed by another request in between"
_LOST_UPDATE = "points are stored, not 1000"

CONTROLS = [
    # Without the gate, what somebody else has written in between is overwritten.
    Control(gate_off, lookups.get, writes.put, _CHANGED, _LOST_UPDATE),
    Control(gate_off, queries.fetch, writes.put_multi, _CHANGED, _LOST_UPDATE),
    Control(gate_off, lookups.get, writes.put_in_a_transaction, _CHANGED, _LOST_UPDATE),
    Control(
        *(gate_off, copies.constructed, writes.put, "under the lock"),
        "EntityExistsError expected, None was raised",
    ),
    # So it is where the gate does not write down what a put builds on.
    Control(versions_off, lookups.get, writes.put, _CHANGED, _LOST_UPDATE),
    Control(versions_off, queries.fetch, writes.put_async, _CHANGED, _LOST_UPDATE),
    Control(versions_off, copies.deep_copy, writes.put, _CHANGED, _LOST_UPDATE),
    # Without its ticket nothing lands.
    Control(
        *(tickets_off, lookups.get, writes.put, "under the lock"),
        "nothing expected, WriteNotFenced",
    ),
    Control(
        *(tickets_off, queries.fetch, writes.put_multi, "in a transaction under the lock"),
        "nothing expected, WriteNotFenced",
    ),
    Control(
        *(tickets_off, lookups.get_or_insert_created, writes.put, "under the lock"),
        "nothing expected, WriteNotFenced",
    ),
    # A new object overwrites what is there.
    Control(
        *(inserts_off, copies.constructed, writes.put, "under the lock"),
        "EntityExistsError expected, None was raised",
    ),
    Control(
        *(inserts_off, copies.given_another_key, writes.put_multi_async, "under the lock"),
        "5 points are stored, not 0",
    ),
    Control(
        *(inserts_off, copies.constructed, writes.put_in_a_transaction, "under the lock"),
        "EntityExistsError expected, None was raised",
    ),
    # What was read counts as read by nobody, or as new.
    Control(
        *(lookup_stamps_off, lookups.get, writes.put, "under the lock"),
        "nothing expected, ReadWithoutLock",
    ),
    Control(
        *(query_stamps_off, queries.fetch, writes.put, "under the lock"),
        "nothing expected, ReadWithoutLock",
    ),
    Control(
        *(stamps_off, lookups.get, writes.put, "under the lock"),
        "nothing expected, EntityExistsError",
    ),
    Control(
        *(stamps_off, queries.fetch, writes.put, "without the lock"),
        "PutWithoutLock expected, CreatedWithoutLock",
    ),
    # What it landed as is not known: the next put meets its own.
    Control(
        *(stamps_of_puts_off, lookups.get_or_insert_created, writes.put, "under the lock"),
        "nothing expected, EntityExistsError",
    ),
    # Under the lock a cache answers with what was read before it.
    Control(
        *(context_cache_check_off, surroundings.context_cache, writes.put, "under the lock"),
        "nothing expected, ReadWithoutLock",
    ),
    Control(
        *(context_cache_check_off, lookups.get, writes.put),
        *("read before the lock and again under it", "nothing expected, ReadWithoutLock"),
    ),
    Control(
        *(global_cache_check_off, surroundings.global_cache, writes.put, "under the lock"),
        "nothing expected, ReadWithoutLock",
    ),
    # A copy does not know when it was read; a pickle cannot be made, or knows too much.
    Control(
        *(copies_off, copies.shallow_copy, writes.put, "under the lock"),
        "nothing expected, ReadWithoutLock",
    ),
    Control(
        *(copies_off, copies.deep_copy, writes.put, "under the lock"),
        "nothing expected, ReadWithoutLock",
    ),
    Control(
        *(pickles_off, copies.pickled, writes.put, "under the lock"),
        "ReadWithoutLock expected, ",
    ),
    # The error does not say where the entity was created.
    Control(
        *(place_of_creation_off, lookups.get_or_insert_async_created, writes.put),
        *("without the lock", "put at"),
    ),
    # What is not allowed is done.
    Control(
        *(put_check_off, lookups.get, writes.put, "without the lock"),
        "PutWithoutLock expected, None was raised",
    ),
    Control(
        *(delete_check_off, lookups.get, writes.delete, "without the lock"),
        "DeletedWithoutLock expected, None was raised",
    ),
    # The base class's put has no ticket, and so it is nevertheless not sent.
    Control(
        *(base_class_off, lookups.get, writes.put_async_of_the_base_class, "under the lock"),
        "nothing expected, WriteNotFenced",
    ),
]


def _way_in(read: Any) -> WayIn:
    (found,) = [way for way in WAYS_IN if way.read is read]
    return found


def _way_out(write: Any) -> WayOut:
    (found,) = [way for way in WAYS_OUT if way.write is write]
    return found


def _situation(name: str) -> Situation:
    (found,) = [each for each in (*BASIC, *OTHERS) if each.name == name]
    return found


@pytest.mark.parametrize("control", CONTROLS, ids=str)
def test_a_protection_is_missed(control: Control) -> None:
    cell = _way_in(control.read), [_way_out(control.write)], [_situation(control.situation)]
    assert differences(*cell) == []
    with pytest.MonkeyPatch.context() as patch:
        control.off(patch)
        found = differences(*cell)
    assert any(control.says in line for line in found), found
    assert differences(*cell) == [], "and it is back"


# --- the global cache -------------------------------------------------------------------------


class TestStampsInTheGlobalCache:
    """Entities from there are fenced as those from Datastore."""

    @pytest.fixture
    def wire(self, context: Any, ndb_client: ndb.Client) -> Wire:
        return Wire(ndb_client)

    def rpcs_of_a_get(self, wire: Wire) -> list[str]:
        """Get what the cache has, which somebody has changed who does not know of it, and put it.

        Returns:
            The RPCs of the look-up.

        Raises:
            StaleWriteError: as it should be.
        """
        key = key_of("ann")

        def change() -> None:
            other = key.get()
            other.points = 1000
            other.put()

        with surroundings.with_a_global_cache(), userlock.suppress("a control"):
            Person(id="ann").put()
            key.get(use_cache=False)
            by_somebody_else(change)
            wire.rpcs.clear()
            person = key.get(use_cache=False)
            asked = wire.names
            person.points += 1
            person.put(use_global_cache=False)
        return asked

    def test_nobody_is_asked_and_what_is_stale_is_refused(self, wire: Wire) -> None:
        with pytest.raises(userlock.StaleWriteError):
            self.rpcs_of_a_get(wire)
        assert wire.names == ["commit"]

    def test_without_a_version_datastore_is_asked(self, wire: Wire, monkeypatch: Patch) -> None:
        stamps_in_the_global_cache_off(monkeypatch)
        assert self.rpcs_of_a_get(wire) == ["lookup"]
        assert wire.names == ["lookup", "commit"]

    def test_and_if_it_were_not_no_put_would_do(self, wire: Wire, monkeypatch: Patch) -> None:
        stamps_in_the_global_cache_off(monkeypatch)
        second_look_off(monkeypatch)
        with pytest.raises(userlock.WriteNotFenced, match="read without its version"):
            self.rpcs_of_a_get(wire)
        assert wire.names == []
