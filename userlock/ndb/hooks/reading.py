"""Hooks on the way in: look-ups, queries, and the two caches."""

from __future__ import annotations

import contextvars
from typing import Any

from google.cloud.ndb import _cache, _datastore_api, _datastore_query, context, model, tasklets

from userlock.ndb.hooks.runtime import model_of
from userlock.ndb.hooks.versions import put_version, version_in
from userlock.ndb.watch import Handler

#: Of the query result that an entity is being made of: its version, and what was held when it
#: arrived, which may be longer ago than now.
_result: contextvars.ContextVar[tuple[int, object] | None] = contextvars.ContextVar(
    "userlock_result", default=None
)


def hook_loading(handler: Handler) -> None:
    """Tell the handler of each entity object that is made of an answer."""
    from_protobuf = model._entity_from_protobuf
    send_lookup = _datastore_api._LookupBatch.idle_callback
    lookup_callback = _datastore_api._LookupBatch.lookup_callback
    tracked = handler.tracked

    def entity_from_protobuf(protobuf: Any) -> Any:
        entity = from_protobuf(protobuf)
        if isinstance(entity, tracked):
            result = _result.get()
            if result is None:
                origin = protobuf.__dict__.get("_userlock_origin")
                handler.loaded(entity, version_in(protobuf._pb), origin)
            else:
                handler.loaded(entity, *result)
        return entity

    def send_and_note_origin(self: Any) -> None:
        self._userlock_origin = handler.origin()
        send_lookup(self)

    def take_versions_of_lookup(self: Any, rpc: Any) -> None:
        if rpc.exception() is None:
            for found in rpc.result()._pb.found:
                put_version(found.entity, found.version)
            if self._userlock_origin != handler.origin():
                _tag_results(self)
        lookup_callback(self, rpc)

    model._entity_from_protobuf = entity_from_protobuf
    _datastore_api._LookupBatch.idle_callback = send_and_note_origin
    _datastore_api._LookupBatch.lookup_callback = take_versions_of_lookup
    _hook_query_results(handler)


def _tag_results(batch: Any) -> None:
    """Locks were taken or left between the question and the answer: the question counts.

    f = key.get_async()      sent before the lock
    with global_lock(…):
        f.get_result()       was not read under it
    """
    origin = batch._userlock_origin

    def tag(future: Any) -> None:
        if future._exception is None and future._result is not _datastore_api._NOT_FOUND:
            future._result.__dict__["_userlock_origin"] = origin

    for futures in batch.todo.values():
        for future in futures:
            future.add_done_callback(tag)


def _hook_query_results(handler: Handler) -> None:
    """A query's results arrive in batches, and become entities one by one, perhaps much later.

    it.has_next()        the batch arrives: outside the transaction, before the lock
    in a transaction:
        next(it)         the entity is made: neither read in it, nor under the lock
    """
    make_result = _datastore_query._Result.__init__
    make_entity = _datastore_query._Result.entity

    def note_origin(
        self: Any,
        result_type: Any,
        result_pb: Any,
        order_by: Any = None,
        query_options: Any = None,
    ) -> None:
        self._userlock_origin = handler.origin()
        make_result(self, result_type, result_pb, order_by, query_options)

    def entity_with_origin(self: Any) -> Any:
        token = _result.set((self.result_pb._pb.version, self._userlock_origin))
        try:
            return make_entity(self)
        finally:
            _result.reset(token)

    _datastore_query._Result.__init__ = note_origin
    _datastore_query._Result.entity = entity_with_origin


def hook_caches(handler: Handler) -> None:
    """Caches lie: ask the handler whether what they have is good."""
    lookup = _datastore_api.lookup
    get_and_validate = _cache.ContextCache.get_and_validate
    tracked = handler.tracked

    def is_tracked(kind: str) -> bool:
        cls = model_of(kind)
        return cls is not None and issubclass(cls, tracked)

    @tasklets.tasklet
    def lookup_with_version(key: Any, options: Any) -> Any:
        entity_pb = yield lookup(key, options)
        if entity_pb is not _datastore_api._NOT_FOUND and not version_in(entity_pb._pb):
            # Put into the global cache by somebody who does not use userlock.
            # Without a version its put could not be fenced.
            entity_pb = yield lookup(key, options.copy(use_global_cache=False))
        return entity_pb

    def lookup_careful_with_the_global_cache(key: Any, options: Any) -> Any:
        if context.get_context().global_cache is None or not is_tracked(key.kind):
            return lookup(key, options)
        if handler.bypass_global_cache():
            return lookup(key, options.copy(use_global_cache=False))
        if options.use_datastore is False:
            return lookup(key, options)
        return lookup_with_version(key, options)

    def get_if_good(self: Any, key: Any) -> Any:
        entity = get_and_validate(self, key)
        if entity is None:
            good = not is_tracked(key.kind()) or handler.cached_miss_is_good(key)
        else:
            good = not isinstance(entity, tracked) or handler.cached_is_good(entity)
        if not good:
            del self[key]
            raise KeyError(key)
        return entity

    _datastore_api.lookup = lookup_careful_with_the_global_cache
    _cache.ContextCache.get_and_validate = get_if_good
