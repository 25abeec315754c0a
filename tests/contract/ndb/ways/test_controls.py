"""The negative controls: with a protection off, cells of the table that were right are wrong.

All ways meet at three RPCs: Lookup and RunQuery, where entities get their
stamps, and Commit, where writes need their tickets. So a few rows and
columns for each protection show that the table would notice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from google.cloud.ndb import model as ndb_model

import userlock
from tests.contract.ndb.servers import Wire
from tests.contract.ndb.ways import copies, lookups, queries, surroundings, writes
from tests.contract.ndb.ways.cells import differences
from tests.contract.ndb.ways.complete import WAYS_IN, WAYS_OUT
from tests.contract.ndb.ways.lookups import key_of
from tests.contract.ndb.ways.models import Person
from tests.contract.ndb.ways.situations import BASIC, OTHERS, Situation
from tests.contract.ndb.ways.tables import WayIn, WayOut, by_somebody_else
from userlock.ndb import hooks, stub
from userlock.ndb import writes as model_writes
from userlock.ndb.provenance import Stamp
from userlock.reports import unlocked_blocks
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("context")

_MODEL = userlock.Model

Patch = pytest.MonkeyPatch


def arranges() -> bool:
    """Return whether a cell arranges data."""
    return unlocked_blocks.get() > 0


# --- each protection, taken away --------------------------------------------------------------


def without_ticket(ticketed: Any) -> Any:
    """Write without tickets, except for the preparation of a cell."""
    return lambda write, key, *content: ticketed(write, key, *content) if arranges() else key


#: Stands for an attribute that is taken away, so that ndb's own or Python's is used.
GONE = object()
#: What is put in whose place while a protection is off.
OFF: dict[str, list[tuple[Any, str, Any]]] = {
    "gate": [(stub._Commit, "future", stub._Method.future)],
    "tickets": [
        (cls, "ticketed", without_ticket(cls.ticketed))
        for cls in (model_writes.Put, model_writes.Delete)
    ],
    # New entities overwrite existing ones, as in ndb.
    "inserts": [(model_writes.Put, "must_be_new", property(lambda _: False, lambda *_: None))],
    "versions": [(model_writes.Write, "base_version", property(lambda _: 0, lambda *_: None))],
    "stamps of look-ups": [(stub, "_stamp_found", lambda asked, response: response)],
    "stamps of queries": [(stub, "_stamp_batch", lambda asked, place, response: response)],
    "stamps": [(hooks, "Stamped", str)],
    "stamps of puts": [(model_writes.Put, "landed", lambda self, outcome: None)],
    # The context cache answers with all that it has, the global cache under a lock as well.
    "check of the context cache": [
        (hooks, name, lambda *_: True) for name in ("cached_is_good", "cached_miss_is_good")
    ],
    "check of the global cache": [(hooks, "_past_the_global_cache", lambda options: options)],
    "stamps in the global cache": [(stub, "put_number", lambda message, number: None)],
    # Entities without a version are taken from the global cache.
    "second look-up": [(hooks, "_has_version", lambda message: True)],
    "copies": [(Stamp, "__deepcopy__", GONE)],
    "pickles": [(Stamp, "__reduce__", GONE)],
    "place of a creation": [(_MODEL, "get_or_insert_async", GONE)],
    "check of puts": [(model_writes, "check_put", lambda write: (write.entity.key.id(), ()))],
    "check of deletes": [
        (model_writes, "check_delete", lambda write, cls, key, seen: (key.id(), ()))
    ],
    "put of the base class": [
        (ndb_model.Model, "put_async", ndb_model.Model.put_async.__wrapped__)
    ],
}


def switch_off(patch: Patch, protection: str) -> None:
    for owner, name, other in OFF[protection]:
        if other is GONE:
            patch.delattr(owner, name)
        else:
            patch.setattr(owner, name, other)


# --- the purpose of each protection -----------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """A protection, a cell that needs it, and the failure of the cell without it.

    Attributes:
        off: the protection that is off.
        read: the way in.
        write: the way out.
        situation: the situation of the cell; without one, each of the basic ones.
        says: the failure; any, if it is not said.
    """

    off: str
    read: Any
    write: Any
    situation: str = ""
    says: str = ""

    def __str__(self) -> str:
        ways = f"{_way_in(self.read).name}, {_way_out(self.write).name}"
        return f"{self.off} off: {ways}, {self.situation}"


_CHANGED = "changed by another request in between"
_LOST_UPDATE = "points are stored, not 1000"

CONTROLS = [
    # Without the gate, the change of another request in between is overwritten.
    Control("gate", lookups.get, writes.put, _CHANGED, _LOST_UPDATE),
    Control("gate", lookups.get, writes.put_in_a_transaction, _CHANGED, _LOST_UPDATE),
    # So it is if the gate does not send the version that a put builds on.
    Control("versions", queries.fetch, writes.put_async, _CHANGED, _LOST_UPDATE),
    # A new object overwrites an existing entity.
    Control(
        *("inserts", copies.given_another_key, writes.put_multi_async, "under the lock"),
        "5 points are stored, not 0",
    ),
    Control(
        *("inserts", copies.constructed, writes.put_in_a_transaction, "under the lock"),
        "EntityExistsError expected, None was raised",
    ),
    # An entity that was read counts as new.
    Control(
        *("stamps", lookups.get, writes.put, "under the lock"),
        "nothing expected, EntityExistsError",
    ),
    # The version that it landed as is not known: the next put meets its own write.
    Control(
        *("stamps of puts", lookups.get_or_insert_created, writes.put, "under the lock"),
        "nothing expected, EntityExistsError",
    ),
    # Under the lock the context cache answers with a read from before it.
    Control(
        *("check of the context cache", lookups.get, writes.put),
        *("read before the lock and again under it", "nothing expected, ReadWithoutLock"),
    ),
    # The base class's put has no ticket, and so it is nevertheless not sent.
    Control(
        *(
            "put of the base class",
            lookups.get,
            writes.put_async_of_the_base_class,
            "under the lock",
        ),
        "nothing expected, WriteNotFenced",
    ),
    Control(
        *("tickets", lookups.get, writes.put, "under the lock"),
        "nothing expected, WriteNotFenced",
    ),
    Control(
        *("tickets", lookups.get, writes.delete, "under the lock"),
        "0 points are stored, not None",
    ),
    # Each part by which an object gets its stamp.
    Control("stamps of look-ups", lookups.get, writes.put),
    Control("stamps of queries", queries.fetch, writes.put),
    Control("stamps", surroundings.thread, writes.put),
    Control("check of the context cache", surroundings.context_cache_by_a_query, writes.put),
    Control("check of the global cache", surroundings.global_cache, writes.put),
    Control("copies", copies.deep_copy_of_an_expando, writes.put),
    Control("pickles", copies.pickled, writes.put),
    Control("place of a creation", lookups.get_or_insert_async_created, writes.put),
    # The checks.
    Control("check of puts", lookups.get, writes.put),
    Control("check of puts", copies.constructed, writes.put),
    Control("check of deletes", lookups.get, writes.delete),
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
    situations = [_situation(control.situation)] if control.situation else BASIC
    cell = _way_in(control.read), [_way_out(control.write)], situations
    assert differences(*cell) == []
    with pytest.MonkeyPatch.context() as patch:
        switch_off(patch, control.off)
        found = differences(*cell)
    assert any(control.says in line for line in found), found
    assert differences(*cell) == [], "and it is back"


# --- the global cache -------------------------------------------------------------------------


class TestStampsInTheGlobalCache:
    """Entities from there are fenced like those from Datastore."""

    def rpcs_of_a_get(self, wire: Wire) -> list[str]:
        """Get an entity from the cache, which another request has changed past it, and put it.

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

        with surroundings.with_a_global_cache(), allow_unlocked("a control"):
            Person(id="ann").put()
            key.get(use_cache=False)
            by_somebody_else(change)
            wire.rpcs.clear()
            person = key.get(use_cache=False)
            asked = wire.names
            person.points += 1
            person.put(use_global_cache=False)
        return asked

    def test_datastore_is_not_asked_and_a_stale_write_is_refused(self, wire: Wire) -> None:
        with pytest.raises(userlock.StaleWriteError):
            self.rpcs_of_a_get(wire)
        assert wire.names == ["commit"]

    def test_without_a_version_datastore_is_asked(self, wire: Wire, monkeypatch: Patch) -> None:
        switch_off(monkeypatch, "stamps in the global cache")
        assert self.rpcs_of_a_get(wire) == ["lookup"]
        assert wire.names == ["lookup", "commit"]

    def test_if_it_were_not_the_put_would_be_refused(self, wire: Wire, monkeypatch: Patch) -> None:
        switch_off(monkeypatch, "stamps in the global cache")
        switch_off(monkeypatch, "second look-up")
        with pytest.raises(userlock.WriteNotFenced, match="read without its version"):
            self.rpcs_of_a_get(wire)
        assert wire.names == []
