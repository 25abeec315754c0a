"""The latest put of each entity: by which object, and what that makes of the others."""

from __future__ import annotations

from typing import Any

from userlock.lock.tenure import Tenure
from userlock.ndb import hooks
from userlock.ndb.places import Place
from userlock.ndb.stamps import Stamp, sequence


class LastPut:
    """The latest put of one entity under one tenure, or in one transaction.

    Attributes:
        by: the object that was put, as a number.
        place: where it was put.
        transaction: the transaction that it is part of, if any.
        future: its outcome to be, once it is on its way.
        version: the version it landed as; 0 until then.
        order: when, in the order of stamps.
    """

    __slots__ = ("by", "future", "order", "place", "transaction", "version")

    def __init__(self, by: int, place: Place | None, transaction: bytes | None) -> None:
        self.by = by
        self.place = place
        self.transaction = transaction
        self.future: Any = None
        self.version = 0
        self.order = next(sequence)

    @property
    def counts(self) -> bool:
        """Whether it has changed the entity, or may yet: not after a failure or a rollback."""
        if self.version:
            return True
        if self.transaction is not None:
            return self.transaction == hooks.current_transaction()
        return self.future is not None and not self.future.done()


def last_puts(tenure: Tenure | None) -> dict[Any, LastPut]:
    """The latest put of each entity, by key: under a tenure, else in the running transaction."""
    notes: dict[str, Any] = hooks.transaction_notes() if tenure is None else tenure.notes
    puts: dict[Any, LastPut] | None = notes.get("last puts")
    if puts is None:
        puts = notes["last puts"] = {}
    return puts


def newer_put(entity: Any, stamp: Stamp | None, tenure: Tenure | None) -> LastPut | None:
    """The put of another object that makes this one the older one, if there is one."""
    last = last_puts(tenure).get(hooks.key_of(entity))
    if last is None or last.by == _identity(entity) or not last.counts:
        return None
    if stamp is None and last.transaction is None:
        return None  # a new object for an entity that exists: the insert says so
    # A transaction reads the state at its beginning, never its own writes: an
    # object read in it after a put in it is the older one all the same.
    if (
        stamp is not None
        and stamp.order > last.order
        and (last.transaction is None or last.transaction != stamp.transaction)
    ):
        return None
    return last


def note_put(
    entity: Any, tenure: Tenure | None, put_at: Place | None, transaction: bytes | None
) -> LastPut:
    """Remember that this object is now the newest of its entity."""
    last = LastPut(_identity(entity), put_at, transaction)
    key = hooks.key_of(entity)
    if hooks.is_complete(key):
        last_puts(tenure)[key] = last
    return last


def _identity(entity: Any) -> int:
    """A number for the object that no later object gets, unlike `id`."""
    number: int | None = entity.__dict__.get("_userlock_identity")
    if number is None:
        number = entity.__dict__["_userlock_identity"] = next(sequence)
    return number


def note_delete(ndb_key: Any) -> None:
    """Remember that an entity is being deleted, if that is in a transaction."""
    if hooks.in_transaction():
        hooks.transaction_notes().setdefault("deleted", set()).add(ndb_key)


def deleted_in_running_transaction(ndb_key: Any) -> bool:
    """Whether an entity has been deleted in the transaction that the running code is in."""
    return hooks.in_transaction() and ndb_key in hooks.transaction_notes().get("deleted", ())


def put_in_running_transaction(entity: Any) -> bool:
    """Whether this very object has been put in the transaction that the running code is in."""
    transaction = hooks.current_transaction()
    return transaction is not None and entity.__dict__.get("_userlock_put_in") == transaction
