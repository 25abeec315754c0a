"""The ndb context and transaction of the running code, and notes about each.

Notes live as long as the objects that have them: a tenure, a transaction's id, a context.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from google.cloud.ndb import context

from userlock.ndb.provenance import Ledger

#: Returns the ndb context of the running code, or None.
current_context: Callable[[], Any] = functools.partial(context.get_context, False)


def current_transaction() -> bytes | None:
    """Return the id of the transaction that the running code is in, if any."""
    current = context.get_context(False)
    return None if current is None else current.transaction


def in_transaction() -> bool:
    current = context.get_context(False)
    return current is not None and current.transaction is not None


def uses_datastore(current: Any, ndb_key: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a call of ndb with these arguments uses Datastore, as ndb decides it."""
    options = kwargs.get("_options")
    asked = kwargs.get("use_datastore") if options is None else options.use_datastore
    if asked is None:
        asked = current.datastore_policy(ndb_key)
    return asked is not False


class Books:
    """The writes on their way, and the errors, of a tenure, an attempt or a request."""

    def __init__(self) -> None:
        self.writes: dict[int, Any] = {}  # the `pending.PendingWrite`s, by number
        #: The `pending.Failure` of each error that is still referenced, by the id of the error.
        self.failures: dict[int, Any] = {}


class Attempt:
    """Notes about one attempt of a transaction, kept by its id (`calls.LateId`)."""

    def __init__(self) -> None:
        self.books = Books()
        self.tickets: list[Any] = []  # the puts and deletes that ndb has taken, `writes.Write`
        self.latest: dict[Any, Any] = {}  # the latest of them for each entity, by key
        #: Whether its commit has begun, or it was rolled back. From then on a put would be lost,
        #: and an error is the transaction's.
        self.over = False
        self.rolled_back = False  # nothing of it was to be stored
        self.earlier: list[Any] = []  # the puts of the attempt before it
        #: Functions to call after its commit, each with the scope that it belongs to.
        self.afterwards: list[tuple[Any, Callable[[], object]]] = []
        #: Functions that release the locks which it keeps.
        self.releases: list[Callable[[Attempt], object]] = []
        self.numbers = itertools.count()  # for entities whose order in the commit counts

    def roll_back(self) -> None:
        """Note that nothing of it is stored: the objects that it has put are outdated."""
        self.over = self.rolled_back = True
        for write in self.latest.values():
            write.outdate_objects()

    def release(self) -> None:
        """Release all locks, even if the release of one raises."""
        while self.releases:
            try:
                self.releases.pop(0)(self)
            except BaseException:
                self.release()
                raise


def current_attempt() -> Attempt:
    transaction = context.get_context().transaction
    attempt: Attempt | None = getattr(transaction, "attempt", None)
    if attempt is None:  # the application has begun it itself, through the client's stub
        attempt = request_notes().attempts.setdefault(transaction, Attempt())
    return attempt


def latest_of(ndb_key: Any) -> Any:
    """Return an entity as the running transaction leaves it, whether ndb caches it or not."""
    write = current_attempt().latest.get(ndb_key)
    if write is None:
        return ndb_key.get()
    return None if write.deleting else write.entity


class RequestNotes:
    """Notes of the outermost ndb context, normally a request's."""

    def __init__(self) -> None:
        #: Of the writes that belong to no lock and no transaction, and the errors of all.
        self.books = Books()
        self.ledger = Ledger()  # the entities that it has read or written, and their versions
        #: The writes outside of transactions that are not answered yet, by key.
        self.flying: dict[Any, Any] = {}
        #: Of transactions that ndb has not begun, by their ids.
        self.attempts: dict[bytes | None, Attempt] = {}


def known_notes() -> RequestNotes | None:
    outermost = context.get_toplevel_context(False) or context.get_context(False)
    return getattr(outermost, "_userlock_notes", None)


def request_notes() -> RequestNotes:
    outermost = context.get_toplevel_context(False) or context.get_context()
    notes: RequestNotes | None = getattr(outermost, "_userlock_notes", None)
    if notes is None:
        notes = outermost._userlock_notes = RequestNotes()
    return notes
