"""The negative controls: with a protection off, cells of the table that were right are wrong.

All ways meet at three RPCs: Lookup and RunQuery, where entities get their
stamps, and Commit, where writes need their tickets. So a few rows and
columns for each protection show that the table would notice.
"""

from __future__ import annotations

from collections.abc import Callable
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
from userlock.reports import unlocked_blocks
from userlock.testing import allow_unlocked

pytestmark = pytest.mark.usefixtures("context")

_MODEL = userlock.Model

Patch = pytest.MonkeyPatch
Off = Callable[[Patch], None]


def arranges() -> bool:
    """Return whether a cell arranges data."""
    return unlocked_blocks.get() > 0


# --- each protection, taken away --------------------------------------------------------------


def gate_off(patch: Patch) -> None:
    """Let commits pass unchanged."""
    patch.setattr(stub._Commit, "future", stub._Method.future)


def tickets_off(patch: Patch) -> None:
    """Take the tickets of writes away, except for the preparation of a cell."""

    def without(ticketed: Any) -> Any:
        return lambda write, key, *content: ticketed(write, key, *content) if arranges() else key

    for cls in (model_writes.Put, model_writes.Delete):
        patch.setattr(cls, "ticketed", without(cls.ticketed))


def inserts_off(patch: Patch) -> None:
    """Send new entities as ndb does, so that they overwrite existing ones."""
    patch.setattr(model_writes.Put, "must_be_new", property(lambda _: False, lambda *_: None))


def versions_off(patch: Patch) -> None:
    """Take the versions of writes away."""
    patch.setattr(model_writes.Write, "base_version", property(lambda _: 0, lambda *_: None))


def lookup_stamps_off(patch: Patch) -> None:
    """Do not stamp the results of look-ups."""
    patch.setattr(stub, "_stamp_found", lambda asked, response: response)


def query_stamps_off(patch: Patch) -> None:
    """Do not stamp the results of queries."""
    patch.setattr(stub, "_stamp_batch", lambda asked, place, response: response)


def stamps_off(patch: Patch) -> None:
    """Do not stamp entities that are made of messages."""
    patch.setattr(hooks, "Stamped", str)


def stamps_of_puts_off(patch: Patch) -> None:
    """Do not stamp the objects of puts."""
    patch.setattr(model_writes.Put, "landed", lambda self, outcome: None)


def context_cache_check_off(patch: Patch) -> None:
    """Let the context cache answer with all that it has."""
    for name in ("cached_is_good", "cached_miss_is_good"):
        patch.setattr(hooks, name, lambda *_: True)


def global_cache_check_off(patch: Patch) -> None:
    """Let the global cache answer under a lock, too."""
    patch.setattr(hooks, "_past_the_global_cache", lambda options: options)


def stamps_in_the_global_cache_off(patch: Patch) -> None:
    """Store entities in the global cache without their versions."""
    patch.setattr(stub, "put_number", lambda message, number: None)


def second_look_up_off(patch: Patch) -> None:
    """Take entities without a version from the global cache."""
    patch.setattr(hooks, "_has_version", lambda message: True)


def copies_off(patch: Patch) -> None:
    """Make copies as Python does."""
    for name in ("__copy__", "__deepcopy__"):
        patch.delattr(_MODEL, name)


def pickles_off(patch: Patch) -> None:
    """Make pickles as ndb does."""
    for name in ("__getstate__", "__setstate__"):
        patch.delattr(_MODEL, name)


def place_of_creation_off(patch: Patch) -> None:
    """Use ndb's `get_or_insert`."""
    patch.delattr(_MODEL, "get_or_insert_async")


def put_check_off(patch: Patch) -> None:
    """Do not check puts."""
    patch.setattr(model_writes, "check_put", lambda write: (write.entity.key.id(), ()))


def delete_check_off(patch: Patch) -> None:
    """Do not check deletes."""
    patch.setattr(model_writes, "check_delete", lambda write, cls, key, seen: (key.id(), ()))


def base_class_off(patch: Patch) -> None:
    """Use ndb's `ndb.Model.put_async`."""
    patch.setattr(ndb_model.Model, "put_async", ndb_model.Model.put_async.__wrapped__)


# --- the purpose of each protection -----------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """A protection, a cell that needs it, and the failure of the cell without it.

    Attributes:
        off: takes it away.
        read: the way in.
        write: the way out.
        situation: the situation of the cell; without one, each of the basic ones.
        says: the failure; any, if it is not said.
    """

    off: Off
    read: Any
    write: Any
    situation: str = ""
    says: str = ""

    def __str__(self) -> str:
        return f"{self.off.__name__}: {self.read.__name__}, {self.write.__name__}, {self.situation}"


_CHANGED = "changed by another request in between"
_LOST_UPDATE = "points are stored, not 1000"

CONTROLS = [
    # Without the gate, the change of another request in between is overwritten.
    Control(gate_off, lookups.get, writes.put, _CHANGED, _LOST_UPDATE),
    Control(gate_off, lookups.get, writes.put_in_a_transaction, _CHANGED, _LOST_UPDATE),
    # So it is if the gate does not send the version that a put builds on.
    Control(versions_off, queries.fetch, writes.put_async, _CHANGED, _LOST_UPDATE),
    # A new object overwrites an existing entity.
    Control(
        *(inserts_off, copies.given_another_key, writes.put_multi_async, "under the lock"),
        "5 points are stored, not 0",
    ),
    Control(
        *(inserts_off, copies.constructed, writes.put_in_a_transaction, "under the lock"),
        "EntityExistsError expected, None was raised",
    ),
    # An entity that was read counts as new.
    Control(
        *(stamps_off, lookups.get, writes.put, "under the lock"),
        "nothing expected, EntityExistsError",
    ),
    # The version that it landed as is not known: the next put meets its own write.
    Control(
        *(stamps_of_puts_off, lookups.get_or_insert_created, writes.put, "under the lock"),
        "nothing expected, EntityExistsError",
    ),
    # Under the lock the context cache answers with a read from before it.
    Control(
        *(context_cache_check_off, lookups.get, writes.put),
        *("read before the lock and again under it", "nothing expected, ReadWithoutLock"),
    ),
    # The base class's put has no ticket, and so it is nevertheless not sent.
    Control(
        *(base_class_off, lookups.get, writes.put_async_of_the_base_class, "under the lock"),
        "nothing expected, WriteNotFenced",
    ),
    Control(
        *(tickets_off, lookups.get, writes.put, "under the lock"),
        "nothing expected, WriteNotFenced",
    ),
    Control(
        *(tickets_off, lookups.get, writes.delete, "under the lock"),
        "0 points are stored, not None",
    ),
    # Each part by which an object gets its stamp.
    Control(lookup_stamps_off, lookups.get, writes.put),
    Control(query_stamps_off, queries.fetch, writes.put),
    Control(stamps_off, surroundings.thread, writes.put),
    Control(context_cache_check_off, surroundings.context_cache_by_a_query, writes.put),
    Control(global_cache_check_off, surroundings.global_cache, writes.put),
    Control(copies_off, copies.shallow_copy, writes.put),
    Control(copies_off, copies.deep_copy_of_an_expando, writes.put),
    Control(pickles_off, copies.pickled, writes.put),
    Control(place_of_creation_off, lookups.get_or_insert_async_created, writes.put),
    # The checks.
    Control(put_check_off, lookups.get, writes.put),
    Control(put_check_off, copies.constructed, writes.put),
    Control(delete_check_off, lookups.get, writes.delete),
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
        control.off(patch)
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
        stamps_in_the_global_cache_off(monkeypatch)
        assert self.rpcs_of_a_get(wire) == ["lookup"]
        assert wire.names == ["lookup", "commit"]

    def test_if_it_were_not_the_put_would_be_refused(self, wire: Wire, monkeypatch: Patch) -> None:
        stamps_in_the_global_cache_off(monkeypatch)
        second_look_up_off(monkeypatch)
        with pytest.raises(userlock.WriteNotFenced, match="read without its version"):
            self.rpcs_of_a_get(wire)
        assert wire.names == []
