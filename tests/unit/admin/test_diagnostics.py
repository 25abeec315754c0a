"""The module that examines a store."""

from __future__ import annotations

from userlock.admin import diagnostics, memory
from userlock.lock.store import LeaseStore
from userlock.stores.memory import MemoryStore


def kind_of(store: LeaseStore) -> object:
    return diagnostics.kind_of(store)


def test_a_store_and_its_subclasses_are_examined_by_their_own_module() -> None:
    class Mine(MemoryStore):
        pass

    assert kind_of(MemoryStore()) is memory
    assert kind_of(Mine()) is memory


def test_a_third_party_may_have_a_package_of_that_name() -> None:
    class Theirs(MemoryStore):
        pass

    Theirs.__module__ = "their_app.userlock.stores.etcd"
    assert kind_of(Theirs()) is memory
