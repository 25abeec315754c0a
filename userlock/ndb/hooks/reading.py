"""Hooks on the way in: look-ups, queries, and the two caches.

An entity counts as read when the question goes to Datastore, and where the
application asks. The object is made when the answer is taken, which may be
later, and somewhere else:

    f = key.get_async()      asked here
    other.get()              sent and answered here, before the lock
    with global_lock(…):
        f.get_result()       made here: not read under the lock

So questions note what was held and the place, and their answers carry it. What
did not come as Datastore's answer (from the global cache, or made by hand of a
message) carries no such note and counts as read under no lock.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from google.cloud.datastore_v1.types.entity import Entity
from google.cloud.datastore_v1.types.query import EntityResult
from google.cloud.ndb import _cache, _datastore_api, _datastore_query, context, model, tasklets

from userlock.ndb.hooks.runtime import kind_of, model_of
from userlock.ndb.hooks.sharing import name_early
from userlock.ndb.hooks.versions import fingerprint, put_version, version_in
from userlock.ndb.watch import Handler


def hook_loading(handler: Handler) -> None:
    """Tell the handler of each entity object that is made of an answer."""
    from_protobuf = model._entity_from_protobuf
    tracked = handler.tracked

    @functools.wraps(from_protobuf)
    def entity_from_protobuf(protobuf: Any) -> Any:
        entity = from_protobuf(protobuf)
        if isinstance(entity, tracked):
            notes = protobuf.__dict__
            version = notes.get("_userlock_version")
            if version is None:
                version = version_in(protobuf._pb)
            handler.loaded(
                entity, version, notes.get("_userlock_origin"), notes.get("_userlock_place")
            )
        return entity

    model._entity_from_protobuf = entity_from_protobuf
    _hook_lookups(handler)
    _hook_queries(handler)


def _hook_lookups(handler: Handler) -> None:
    """Look-ups that are asked for in one turn are sent together, in the next one."""
    batch_class = _datastore_api._LookupBatch
    send = batch_class.idle_callback
    lookup_callback = batch_class.lookup_callback
    is_tracked = _kinds_of(handler)

    @functools.wraps(send)
    def send_noting_origin(self: Any) -> None:
        self._userlock_origin = handler.origin()
        self._userlock_cached = context.get_context().global_cache is not None
        send(self)

    @functools.wraps(lookup_callback)
    def take_noting_origin(self: Any, rpc: Any) -> None:
        # What was found is handed on here, with the notes, and what was not is left to ndb. Its own
        # way wraps each message of the answer three times over, which costs more than all of this.
        found = rpc.result()._pb.found if rpc.exception() is None else []
        for result in found:
            entity_pb = result.entity
            key_pb = entity_pb.key
            notes = {}
            if is_tracked(key_pb.path[-1].kind):
                version = result.version or fingerprint(entity_pb)
                notes = {"_userlock_origin": self._userlock_origin, "_userlock_version": version}
                if self._userlock_cached:
                    put_version(entity_pb, version)
            for future in self.todo[key_pb.SerializeToString()]:
                message = Entity.wrap(entity_pb)
                message.__dict__.update(notes)
                future.set_result(message)
        del found[:]
        lookup_callback(self, rpc)

    batch_class.idle_callback = send_noting_origin
    batch_class.lookup_callback = take_noting_origin


def _kinds_of(handler: Handler) -> Callable[[str], bool]:
    """A function that tells whether a kind is watched."""
    tracked = handler.tracked

    def is_tracked(kind: str) -> bool:
        cls = model_of(kind)
        return cls is not None and issubclass(cls, tracked)

    return is_tracked


def _note_place(place: object, future: Any) -> None:
    """Note on a message that has been looked up where it was asked for."""
    if future._exception is None and future._result is not _datastore_api._NOT_FOUND:
        future._result.__dict__["_userlock_place"] = place


def _hook_queries(handler: Handler) -> None:
    """A query's results arrive in batches, and become entities one by one, perhaps much later."""
    iterator_class = _datastore_query._QueryIteratorImpl
    begin = iterator_class.__init__
    next_batch = iterator_class._next_batch
    result_class = _datastore_query._Result
    make_entity = result_class.entity

    @functools.wraps(begin)
    def begin_noting_place(self: Any, query: Any, raw: bool = False) -> None:
        begin(self, query, raw=raw)
        self._userlock_place = handler.place()

    @functools.wraps(next_batch)
    def next_batch_noting_origin(self: Any) -> Any:
        asked = handler.origin(), self._userlock_place
        future = next_batch(self)

        def note(done: Any) -> None:
            if done._exception is None:
                for result in self._batch:
                    result._userlock_asked = asked

        future.add_done_callback(note)
        return future

    @functools.wraps(make_entity)
    def entity_as_asked_for(self: Any) -> Any:
        if self.result_type == _datastore_query.RESULT_TYPE_KEY_ONLY:
            return make_entity(self)
        origin, place = self._userlock_asked
        shown = self.result_pb
        result_pb = shown._pb
        version = result_pb.version
        if not version and self.result_type == _datastore_query.RESULT_TYPE_FULL:
            version = fingerprint(result_pb.entity)
        message = Entity.wrap(result_pb.entity)
        message.__dict__.update(
            _userlock_version=version, _userlock_origin=origin, _userlock_place=place
        )
        # In the way of the message that would be wrapped each time it is asked for. Taken out
        # again, and not by way of a `__dict__`, as thousands of results that keep theirs make
        # garbage collections long.
        object.__setattr__(shown, "entity", message)
        try:
            return make_entity(self)
        finally:
            object.__delattr__(shown, "entity")

    result_class.entity = entity_as_asked_for
    result_class._userlock_asked = None, None
    name_early(result_class, ["_userlock_asked"])
    name_early(EntityResult, ["_pb", "entity"])
    iterator_class.__init__ = begin_noting_place
    iterator_class._next_batch = next_batch_noting_origin


def hook_caches(handler: Handler) -> None:
    """Caches lie: ask the handler whether what they have is good."""
    lookup = _datastore_api.lookup
    get_and_validate = _cache.ContextCache.get_and_validate
    tracked = handler.tracked
    is_tracked = _kinds_of(handler)

    @tasklets.tasklet
    def lookup_with_version(key: Any, options: Any) -> Any:
        entity_pb = yield lookup(key, options)
        if entity_pb is not _datastore_api._NOT_FOUND and not version_in(entity_pb._pb):
            # Put into the global cache by somebody who does not use userlock.
            # Without a version its put could not be fenced.
            entity_pb = yield lookup(key, options.copy(use_global_cache=False))
        return entity_pb

    def lookup_careful_with_the_global_cache(key: Any, options: Any, current: Any) -> Any:
        if not current._use_datastore(key, options):
            return lookup(key, options)
        if handler.bypass_global_cache():
            return lookup(key, options.copy(use_global_cache=False))
        return lookup_with_version(key, options)

    @functools.wraps(lookup)
    def lookup_noting_place(key: Any, options: Any) -> Any:
        if not is_tracked(kind_of(key)):
            return lookup(key, options)
        current = context.get_context()
        if current.global_cache is None:
            future = lookup(key, options)
        else:
            future = lookup_careful_with_the_global_cache(key, options, current)
        future.add_done_callback(functools.partial(_note_place, handler.place()))
        return future

    @functools.wraps(get_and_validate)
    def get_if_good(self: Any, key: Any) -> Any:
        entity = get_and_validate(self, key)
        if entity is None:
            good = not is_tracked(kind_of(key._key)) or handler.cached_miss_is_good(key)
        else:
            good = not isinstance(entity, tracked) or handler.cached_is_good(entity)
        if not good:
            del self[key]
            raise KeyError(key)
        return entity

    _datastore_api.lookup = lookup_noting_place
    _cache.ContextCache.get_and_validate = get_if_good
