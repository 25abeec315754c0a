"""The module of this room for each kind of store."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple, Protocol, cast

from userlock.admin.findings import Finding
from userlock.lock.store import LeaseStore, Stored


class Listed(NamedTuple):
    """A lock that has a record, as its store lists it."""

    name: str  # its id; where the store keeps only its hash, `sha256:` and the hash
    hashed: bool
    stored: Stored

    @classmethod
    def of(cls, name: str, hashed: bool, stored: Stored) -> Listed:
        """Return the lock of that id, or of that hash of one."""
        return cls(f"sha256:{name}" if hashed else name, hashed, stored)


class Listing(NamedTuple):
    """The locks of a store that have a record, each once, in no order."""

    locks: list[Listed]
    #: Why there may be more of them; empty if there are not.
    note: str = ""


class Kind(Protocol):
    """The functions of such a module. Their store is one of that kind."""

    def list_locks(self, store: Any, limit: int) -> Listing:
        """Return at most `limit` locks. Costs the store some work. Raises `StoreUnavailable`."""
        ...

    def examine(self, store: Any) -> list[Finding]:
        """Return the findings about each server. Takes a few seconds; raises for no failure.

        Writes a record of its own, under a random lock id, and removes it.
        """
        ...


def kind_of(store: LeaseStore) -> Kind | None:
    """Return the module for a store; None for a third party's."""
    for parent in type(store).__mro__:
        _, ours, rest = parent.__module__.partition("userlock.stores.")
        if ours:
            return cast(Kind, importlib.import_module(f"userlock.admin.{rest.split('.')[0]}"))
    return None
