"""The ndb context and transaction of the running code, and notes about each.

Notes are attributes of ndb's own objects, and live as long as those.

- `Attempt`: of one attempt of a transaction, with all contexts within it.
- `RequestNotes`: of the outermost context, normally a request's.
- `in_flight`: of an event loop: the puts and deletes that are not answered yet.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

from google.cloud.ndb import context


def current_context() -> Any:
    """Return the ndb context of the running code, or None."""
    return context.get_context(False)


def current_transaction() -> bytes | None:
    """Return the id of the transaction that the running code is in, if any."""
    current = context.get_context(False)
    return None if current is None else current.transaction


def in_transaction() -> bool:
    """Return whether the running code is in a transaction."""
    return current_transaction() is not None


# --- one attempt of a transaction -----------------------------------------------------------


class Attempt:
    """Notes of one attempt of a transaction."""

    def __init__(self) -> None:
        #: Of the puts and deletes that it has begun.
        self.tickets: list[Any] = []
        #: The latest put of each entity, by key.
        self.puts: dict[Any, Any] = {}
        #: The keys that it has deleted.
        self.deleted: set[Any] = set()
        #: Whether it was committed or rolled back. A put after that would be lost.
        self.over = False
        #: Functions to call after its commit, each with the scope that it belongs to.
        self.afterwards: list[tuple[Any, Callable[[], object]]] = []
        #: Numbers for entities whose order in the commit counts.
        self.numbers = itertools.count()

    def end(self) -> None:
        """Note that it has been committed or rolled back."""
        self.over = True


def current_attempt() -> Attempt:
    """Return the notes of the running transaction."""
    current = context.get_context()
    notes = vars(current.eventloop)
    attempt: Attempt | None = notes.get("_userlock_attempt")
    if attempt is None:
        attempt = notes["_userlock_attempt"] = _attempt_around(current) or Attempt()
    return attempt


def _attempt_around(current: Any) -> Attempt | None:
    """Return the attempt around a context that has an event loop of its own.

    Both have the same callbacks for the end of the transaction; `Attempt.end` is one.
    """
    for callback in current.transaction_complete_callbacks or ():
        attempt = getattr(callback, "__self__", None)
        if isinstance(attempt, Attempt):
            return attempt
    return None


# --- a request ------------------------------------------------------------------------------


class RequestNotes:
    """Notes of the outermost ndb context."""

    def __init__(self) -> None:
        #: The stamps of each entity whose objects are no longer found under its key: see
        #: `provenance.keep`.
        self.kept: dict[Any, tuple[Any, ...]] = {}
        #: The `Books` of the writes that belong to no lock and no transaction.
        self.books: Any = None
        self._caches: list[weakref.ref[Any]] = []

    def note_cache(self, cache: Any) -> None:
        """Remember the cache of a context in which entities are read or put."""
        caches = self.caches
        if not any(each is cache for each in caches):
            self._caches = [weakref.ref(each) for each in (cache, *caches)]

    @property
    def caches(self) -> list[Any]:
        """Return the caches of the contexts that still exist, the latest first."""
        return [cache for each in self._caches if (cache := each()) is not None]


def request_notes(of: Any = None) -> RequestNotes:
    """Return the notes of the outermost context: of the current one, unless it is given."""
    outermost = of or context.get_toplevel_context(False) or context.get_context()
    notes: RequestNotes | None = vars(outermost).get("_userlock_notes")
    if notes is None:
        notes = vars(outermost)["_userlock_notes"] = RequestNotes()
    return notes


def note_reading() -> None:
    """Note that entities are read in the current context."""
    current = context.get_context(False)
    if current is not None:
        request_notes().note_cache(current.cache)


def _caches() -> list[Any]:
    """Return the context caches that may have an entity, each once."""
    current = context.get_context(False)
    if current is None:
        return []
    caches = [current.cache, context.get_toplevel_context().cache, *request_notes().caches]
    return list({id(each): each for each in caches}.values())


def cached_entities(ndb_key: Any) -> list[Any]:
    """Return the objects under a key in this request's caches. They may have another key now."""
    found = [entity for cache in _caches() if (entity := cache.get(ndb_key)) is not None]
    return list({id(each): each for each in found}.values())


def forget_cached(ndb_key: Any, begun_in: Any) -> None:
    """Take an entity out of the context caches, also out of that of the write's context."""
    for cache in (begun_in.cache, *_caches()):
        cache.pop(ndb_key, None)


def in_flight(of: Any) -> dict[Any, Any]:
    """Return the writes that are under way on the event loop of a context, by key.

    ndb sends the writes of one turn in one commit, which must not change an entity twice.
    """
    flying: dict[Any, Any] = vars(of.eventloop).setdefault("_userlock_in_flight", {})
    return flying
