"""The ndb context and transaction of the running code, and the notes for each.

Notes live as long as what they are about, in attributes of ndb's own objects.

- `Attempt`: of one attempt of a transaction, with all contexts within it.
- `RequestNotes`: of the outermost context, normally a request's.
- `in_flight`: of an event loop: puts and deletes that have not been answered yet.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from google.cloud.ndb import context


def current_context() -> Any:
    """Return the ndb context that the running code is in, or None."""
    return context.get_context(False)


def current_transaction() -> bytes | None:
    """Return the id of the transaction that the running code is in, if any."""
    current = context.get_context(False)
    return None if current is None else current.transaction


def in_transaction() -> bool:
    """Return whether the running code is in a transaction."""
    return current_transaction() is not None


class Attempt:
    """The notes of one attempt of a transaction.

    Attributes:
        tickets: of the puts and deletes that it has begun.
        puts: the latest put of each entity, by key.
        deleted: the keys of what it has deleted.
        over: whether it was committed or rolled back: what is put now would be lost.
    """

    __slots__ = ("deleted", "over", "puts", "tickets")

    def __init__(self) -> None:
        self.tickets: list[Any] = []
        self.puts: dict[Any, Any] = {}
        self.deleted: set[Any] = set()
        self.over = False

    def end(self) -> None:
        """It has been committed or rolled back."""
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
    """Return the attempt that a context with an event loop of its own is within.

    They share what is called at its end: `Attempt.end` is.
    """
    for callback in current.transaction_complete_callbacks or ():
        attempt = getattr(callback, "__self__", None)
        if isinstance(attempt, Attempt):
            return attempt
    return None


class RequestNotes:
    """The notes of the outermost ndb context.

    Attributes:
        left: of entities whose object is no longer to be found under their key, as it has been
            given another one or its delete was begun: what that object stood for.
        unwatched: tickets that belong to no lock and no transaction, by number.
    """

    __slots__ = ("_caches", "left", "unwatched")

    def __init__(self) -> None:
        self.left: dict[Any, Any] = {}
        self.unwatched: dict[int, Any] = {}
        self._caches: list[weakref.ref[Any]] = []

    def note_cache(self, cache: Any) -> None:
        """Remember the cache of a context in which entities are read."""
        if any(each() is cache for each in self._caches):
            return
        self._caches = [each for each in self._caches if each() is not None]
        self._caches.append(weakref.ref(cache))

    @property
    def caches(self) -> Iterator[Any]:
        """Return the caches of all contexts that are still around, the latest first."""
        for each in reversed(self._caches):
            cache = each()
            if cache is not None:
                yield cache


def request_notes(of: Any = None) -> RequestNotes:
    """Return the notes of the outermost context.

    Args:
        of: that context, where it is not the current one any more.
    """
    outermost = of or context.get_toplevel_context(False) or context.get_context()
    notes: RequestNotes | None = vars(outermost).get("_userlock_notes")
    if notes is None:
        notes = vars(outermost)["_userlock_notes"] = RequestNotes()
    return notes


def note_reading() -> None:
    """Remember that entities are being read in the current context."""
    current = context.get_context(False)
    if current is not None:
        request_notes().note_cache(current.cache)


def _caches() -> Iterator[Any]:
    """Give the context caches that may know of an entity."""
    current = context.get_context(False)
    if current is None:
        return
    given = [current.cache]
    yield current.cache
    for cache in (context.get_toplevel_context().cache, *request_notes().caches):
        if not any(cache is each for each in given):
            given.append(cache)
            yield cache


def cached_entities(ndb_key: Any) -> Iterator[Any]:
    """Give the objects that the caches of this request's contexts have for a key, each once.

    An object may have been given another key since.
    """
    given: list[Any] = []
    for cache in _caches():
        entity = cache.get(ndb_key)
        if entity is not None and not any(entity is each for each in given):
            given.append(entity)
            yield entity


def forget_cached(ndb_key: Any, begun_in: Any = None) -> None:
    """Take an entity out of the context caches, so that the next read is a fresh one."""
    if begun_in is not None:
        begun_in.cache.pop(ndb_key, None)
    for cache in _caches():
        cache.pop(ndb_key, None)


def in_flight(of: Any) -> dict[Any, Any]:
    """Return the writes under way on the event loop of a context: key to ticket.

    ndb sends what is put and deleted in one turn in one commit, where a second
    mutation of an entity is an error.
    """
    notes = vars(of.eventloop)
    flying: dict[Any, Any] | None = notes.get("_userlock_in_flight")
    if flying is None:
        flying = notes["_userlock_in_flight"] = {}
    return flying
