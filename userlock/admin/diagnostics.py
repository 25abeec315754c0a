"""Diagnostics: for each kind of store the module of this room that lists its locks and examines
its servers. It has the name of the store's module."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

from userlock.admin.findings import Finding, Findings
from userlock.admin.selftest import try_out
from userlock.lock.store import LeaseStore, Stored

#: How long a third party's store is taken to wait for a reply, in seconds.
_USUAL_PATIENCE = 0.3
#: The most bytes of all records in one listing. Parsed, they take a multiple of it.
MOST_LISTED_BYTES = 8 << 20


class Listed(NamedTuple):
    """A lock that has a record, as its store lists it."""

    name: str  # its id; where the store keeps only its hash, `sha256:` and the hash
    hashed: bool
    stored: Stored

    @classmethod
    def of(cls, name: str, hashed: bool, stored: Stored) -> Listed:
        """Return the lock of that id, or of that hash of one."""
        return cls(f"sha256:{name}" if hashed else name, hashed, stored)


class Room:
    """Room for the records of a listing: forged ones must not fill the memory."""

    #: Of a listing that room was too short for.
    NOTE = f"the records have more than {MOST_LISTED_BYTES >> 20} MB; long ones are missing"

    def __init__(self) -> None:
        self._left = MOST_LISTED_BYTES

    def takes(self, record: bytes) -> bool:
        """Return whether there is room for one more record."""
        if len(record) > self._left:
            return False
        self._left -= len(record)
        return True


class Listing(NamedTuple):
    """The locks of a store that have a record, each once, in no order."""

    locks: list[Listed]
    #: Why there may be more of them; empty if there are not.
    note: str = ""


class Kind(Protocol):
    """The functions of such a module, for its kind of store."""

    #: At most so many locks of a store. Costs it some work. Raises `StoreUnavailable`.
    list_locks: Callable[[Any, int], Listing]
    #: The findings about each server. Takes a few seconds; raises for no failure. Writes a record
    #: of its own, under a random lock id, and removes it.
    examine: Callable[[Any], list[Finding]]


def kind_of(store: LeaseStore) -> Kind | None:
    """Return the module for a store; None for a third party's."""
    for parent in type(store).__mro__:
        if parent.__module__.startswith("userlock.stores."):
            name = parent.__module__.split(".")[2]
            return cast(Kind, importlib.import_module(f"userlock.admin.{name}"))
    return None


def examine(store: LeaseStore) -> list[Finding]:
    """Return the findings about a store's servers. Of a third party's, only its records and its
    speed are tried."""
    kind = kind_of(store)
    if kind is not None:
        return kind.examine(store)
    found = Findings(type(store).__name__)
    try_out(found, store, patience=_USUAL_PATIENCE)
    return found
