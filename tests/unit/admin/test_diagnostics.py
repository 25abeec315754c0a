"""The module that examines a store."""

from __future__ import annotations

from userlock.admin import diagnostics, memory
from userlock.stores.memory import MemoryStore


def test_a_store_and_its_subclasses_are_examined_by_their_own_module() -> None:
    class Mine(MemoryStore):
        pass

    assert diagnostics.kind_of(MemoryStore()) is memory
    assert diagnostics.kind_of(Mine()) is memory


def test_a_third_party_may_have_a_package_of_that_name() -> None:
    class Theirs(MemoryStore):
        pass

    Theirs.__module__ = "their_app.userlock.stores.etcd"
    assert diagnostics.kind_of(Theirs()) is memory
