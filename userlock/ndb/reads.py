"""Read stamps: put on the results of look-ups and queries, before ndb gets them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from google.cloud.datastore_v1.types.entity import Entity
from google.cloud.datastore_v1.types.query import EntityResult

from userlock.callsite import CallSite
from userlock.ndb.commits import kind_of
from userlock.ndb.context import note_reading
from userlock.ndb.enforcement import place_of_read
from userlock.ndb.policies import is_watched
from userlock.ndb.provenance import Origin, origin
from userlock.ndb.wire import put_number, raw


def stamper_of_lookup(request: Any) -> Callable[[Any], Any] | None:
    """Return a function that stamps the answer of a (raw) look-up; None if nothing is watched."""
    if not any(is_watched(kind_of(key)) for key in request.keys):
        return None
    note_reading()
    return functools.partial(_stamp_lookup, origin(request.read_options.transaction))


def _stamp_lookup(asked: Origin, response: Any) -> Any:
    found: list[Any] = []
    for result in raw(response).found:
        if is_watched(kind_of(result.entity.key)):
            if result.version:
                put_number(result.entity, result.version)  # for the global cache
            found.append(_Result(result, asked, None))
        else:
            found.append(EntityResult.wrap(result))
    response.__dict__["found"] = found  # hides the message's own field
    return response


def stamper_of_query(request: Any) -> Callable[[Any], Any] | None:
    """Return a function that stamps the answer of a (raw) query; None if nothing is watched."""
    kinds = request.query.kind  # empty for a query of all kinds, and for GQL
    if kinds and not any(is_watched(each.name) for each in kinds):
        return None
    note_reading()
    asked = origin(request.read_options.transaction)
    return functools.partial(_stamp_query, asked, place_of_read())


def _stamp_query(asked: Origin, place: CallSite | None, response: Any) -> Any:
    results = raw(response).batch.entity_results
    if any(is_watched(kind_of(result.entity.key)) for result in results):
        batch = response.batch
        batch.__dict__["entity_results"] = [_Result(each, asked, place) for each in results]
        response.__dict__["batch"] = batch
    return response


_set = object.__setattr__


class _Result:
    """One result of a look-up or query, for ndb. Its entity is made on demand."""

    __slots__ = ("_asked", "_place", "_raw")

    def __init__(self, result: Any, asked: Origin, place: CallSite | None) -> None:
        self._raw = result
        self._asked = asked
        self._place = place

    @property
    def entity(self) -> Any:
        """Return the Entity message of google-cloud-datastore's, with its stamp."""
        message = Entity.__new__(Entity)
        # Attribute by attribute: its `__dict__` would give each message a dict.
        _set(message, "_pb", self._raw.entity)
        _set(message, "_userlock_stamp", (self._raw.version, self._asked, self._place))
        return message

    @property
    def cursor(self) -> Any:
        return self._raw.cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(EntityResult.wrap(self._raw), name)
