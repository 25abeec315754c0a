"""Every touch of google-cloud-ndb's internals, and nothing else.

ndb has no public way to learn the version an entity was read at, to send a
`base_version` with a put, or to refuse a put before it is sent. This module
hooks into the few places where that can be done, and hands what passes there
to a `watch.Handler`. Written against google-cloud-ndb 2.3 to 2.7.

`install` checks each place first. On a release of ndb that moved one, the
import of userlock fails and says which; protection is never lost silently.

How a version travels. A look-up's or query's result carries the entity and
its version side by side, but ndb passes on the entity alone. The version is
therefore put into the Entity message itself, as a field that Datastore's
schema does not know; protobuf keeps unknown fields, also through ndb's global
cache. Entities that are put are built anew and never carry it.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable
from typing import Any

from google.api_core.exceptions import AlreadyExists
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.ndb import __version__ as ndb_version
from google.cloud.ndb import (
    _cache,
    _datastore_api,
    _datastore_query,
    _eventloop,
    _transaction,
    context,
    exceptions,
    key,
    model,
    tasklets,
)
from google.protobuf import unknown_fields

from userlock.ndb.watch import Handler, Write

_VERSION_FIELD = 7697260  # "usl" in ASCII; far above any number that Datastore's schema uses
_FIXED64 = 1


def _tag(field: int, wire_type: int) -> bytes:
    number = field << 3 | wire_type
    tag = bytearray()
    while number > 0x7F:
        tag.append(number & 0x7F | 0x80)
        number >>= 7
    tag.append(number)
    return bytes(tag)


_VERSION_TAG = _tag(_VERSION_FIELD, _FIXED64)
_pack = struct.Struct("<Q").pack


# --- what the rest of the wing asks of ndb ---------------------------------------------------


def current_transaction() -> bytes | None:
    """The id of the transaction that the running code is in, if any."""
    current = context.get_context(False)
    return None if current is None else current.transaction


def has_context() -> bool:
    """Whether the running code is inside `ndb.Client.context()`."""
    return context.get_context(False) is not None


def when_transaction_ends(callback: Callable[[], None]) -> None:
    """Call `callback` when this attempt of the running transaction is over, either way.

    ndb runs a whole transaction again when such a callback raises a transient
    error, so it must not raise.
    """
    context.get_context().call_on_transaction_complete(callback)


def forget_cached(ndb_key: Any) -> None:
    """Take an entity out of the context caches, so that the next read is a fresh one."""
    for current in (context.get_context(False), context.get_toplevel_context(False)):
        if current is not None:
            current.cache.pop(ndb_key, None)


def model_of(ndb_key: Any) -> type | None:
    """The model class of a key's kind, if it has been imported."""
    found: type | None = model.Model._kind_map.get(ndb_key.kind())
    return found


def unobserved(future: Any) -> Callable[[], BaseException | None]:
    """A function that gives a finished future's error while nobody has asked for it.

    An error of a `put_async` whose future is dropped would vanish; one that
    the caller has seen must not be raised a second time.
    """
    seen = False
    kind = type(future)

    def check_success() -> None:
        nonlocal seen
        seen = True
        kind.check_success(future)

    def exception() -> Any:
        nonlocal seen
        error = kind.exception(future)
        seen = seen or error is not None
        return error

    future.check_success = check_success
    future.exception = future.get_exception = exception
    return lambda: None if seen or not future.done() else kind.exception(future)


# --- the hooks ------------------------------------------------------------------------------

_POINTS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (model, "_entity_from_protobuf", ("protobuf",)),
    (model, "_entity_to_ds_entity", ("entity", "set_key")),
    (model.Model, "_put_async", ("self", "kwargs")),
    (_datastore_api, "lookup", ("key", "options")),
    (_datastore_api, "put", ("entity", "options")),
    (_datastore_api, "commit", ("transaction", "retries", "timeout")),
    (_datastore_api, "_process_commit", ("rpc", "futures")),
    (_datastore_api._LookupBatch, "lookup_callback", ("self", "rpc")),
    (_datastore_api._NonTransactionalCommitBatch, "put", ("self", "entity_pb")),
    (_datastore_api._NonTransactionalCommitBatch, "idle_callback", ("self",)),
    (_datastore_api._TransactionalCommitBatch, "put", ("self", "entity_pb")),
    (
        _datastore_query._Result,
        "__init__",
        ("self", "result_type", "result_pb", "order_by", "query_options"),
    ),
    (_cache.ContextCache, "get_and_validate", ("self", "key")),
    (key.Key, "delete_async", ("self",)),
    (context.Context, "call_on_transaction_complete", ("self", "callback")),
    (_transaction, "_transaction_async", ("context", "callback", "read_only")),
    (tasklets.Future, "check_success", ("self",)),
    (tasklets.Future, "exception", ("self",)),
)


def missing_points() -> list[str]:
    """The hook points that this release of ndb does not have as they are expected."""
    missing = []
    for owner, name, parameters in _POINTS:
        function = getattr(owner, name, None)
        where = f"{getattr(owner, '__name__', owner)}.{name}"
        if function is None:
            missing.append(f"{where} is gone")
            continue
        found = tuple(inspect.signature(inspect.unwrap(function)).parameters)
        if found[: len(parameters)] != parameters:
            missing.append(f"{where} takes {found}, not {parameters}")
    if not hasattr(_datastore_api, "helpers"):
        missing.append("_datastore_api.helpers is gone")
    return missing


_installed: Handler | None = None


def install(handler: Handler) -> None:
    """Hook into ndb, once per process.

    Raises:
        ImportError: this release of ndb lacks a hook point; says which.
    """
    global _installed
    if _installed is not None:
        raise RuntimeError("userlock is hooked into ndb already")
    missing = missing_points()
    if missing:
        raise ImportError(
            f"userlock cannot protect writes with google-cloud-ndb {ndb_version}: "
            f"{'; '.join(missing)}. Install a release that userlock supports "
            f"(google-cloud-ndb>=2.3), or a newer userlock."
        )
    _installed = handler
    _hook_loading(handler)
    _hook_reading(handler)
    _hook_putting(handler)
    _hook_committing()
    _hook_deleting(handler)


def _hook_loading(handler: Handler) -> None:
    from_protobuf = model._entity_from_protobuf
    lookup_callback = _datastore_api._LookupBatch.lookup_callback
    make_result = _datastore_query._Result.__init__
    tracked = handler.tracked

    def entity_from_protobuf(protobuf: Any) -> Any:
        entity = from_protobuf(protobuf)
        if isinstance(entity, tracked):
            handler.loaded(entity, _version_in(protobuf._pb))
        return entity

    def take_versions_of_lookup(self: Any, rpc: Any) -> None:
        if rpc.exception() is None:
            for found in rpc.result()._pb.found:
                _put_version(found.entity, found.version)
        lookup_callback(self, rpc)

    def take_version_of_result(
        self: Any,
        result_type: Any,
        result_pb: Any,
        order_by: Any = None,
        query_options: Any = None,
    ) -> None:
        raw = result_pb._pb
        if raw.version:
            _put_version(raw.entity, raw.version)
        make_result(self, result_type, result_pb, order_by, query_options)

    model._entity_from_protobuf = entity_from_protobuf
    _datastore_api._LookupBatch.lookup_callback = take_versions_of_lookup
    _datastore_query._Result.__init__ = take_version_of_result


def _put_version(entity_pb: Any, version: int) -> None:
    entity_pb.MergeFromString(_VERSION_TAG + _pack(version))


def _version_in(entity_pb: Any) -> int:
    version = 0
    fields: Any = unknown_fields.UnknownFieldSet(entity_pb)
    for field in fields:
        if field.field_number == _VERSION_FIELD:
            version = field.data  # the last one counts, as in protobuf itself
    return version


def _hook_reading(handler: Handler) -> None:
    lookup = _datastore_api.lookup
    get_and_validate = _cache.ContextCache.get_and_validate
    tracked = handler.tracked

    def lookup_past_the_global_cache(key: Any, options: Any) -> Any:
        if options.use_global_cache is not False and handler.bypass_global_cache(key.kind):
            options = options.copy(use_global_cache=False)
        return lookup(key, options)

    def get_if_good(self: Any, key: Any) -> Any:
        entity = get_and_validate(self, key)
        if entity is None:
            good = handler.cached_miss_is_good(key)
        else:
            good = not isinstance(entity, tracked) or handler.cached_is_good(entity)
        if not good:
            del self[key]
            raise KeyError(key)
        return entity

    _datastore_api.lookup = lookup_past_the_global_cache
    _cache.ContextCache.get_and_validate = get_if_good


class _Helpers:
    """google.cloud.datastore.helpers as ndb's put sees it: a write stays with its message."""

    def __init__(self, helpers: Any) -> None:
        self._helpers = helpers

    def entity_to_protobuf(self, entity: Any) -> Any:
        protobuf = self._helpers.entity_to_protobuf(entity)
        write = getattr(entity, "_userlock_write", None)
        if write is not None:
            protobuf.__dict__["_userlock_write"] = write
        return protobuf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._helpers, name)


def _hook_putting(handler: Handler) -> None:
    """Carry a write from the entity to the mutation.

    put_async ─▶ _entity_to_ds_entity ─▶ entity_to_protobuf ─▶ batch.put ─▶ mutation
    (model)      on the ds_entity        on the message        on the future and the mutation

    By object, not by key: between the steps other puts may run, of the same
    key too.
    """
    to_ds_entity = model._entity_to_ds_entity
    tracked = handler.tracked

    def entity_to_ds_entity(entity: Any, set_key: bool = True) -> Any:
        ds_entity = to_ds_entity(entity, set_key=set_key)
        if set_key and isinstance(entity, tracked):
            ds_entity._userlock_write = handler.write_of(entity)
        return ds_entity

    model._entity_to_ds_entity = entity_to_ds_entity
    _datastore_api.helpers = _Helpers(_datastore_api.helpers)
    _hook_batch(_datastore_api._NonTransactionalCommitBatch, transactional=False)
    _hook_batch(_datastore_api._TransactionalCommitBatch, transactional=True)
    _hook_empty_commits(_datastore_api._NonTransactionalCommitBatch)


def _hook_batch(batch_class: Any, *, transactional: bool) -> None:
    put = batch_class.put
    fail = datastore_types.Mutation.ConflictResolutionStrategy.FAIL

    def put_with_write(self: Any, entity_pb: Any) -> Any:
        write: Write | None = entity_pb.__dict__.get("_userlock_write")
        if write is None:
            return put(self, entity_pb)
        batch = self
        if write.must_be_new:
            # An insert that fails takes its whole commit with it, so it gets
            # a commit of its own, sent beside the others'.
            batch = batch_class(self.options)
            _eventloop.add_idle(batch.idle_callback)
        future = put(batch, entity_pb)
        future._userlock_write = write
        mutation = batch.mutations[-1]
        if write.must_be_new:
            mutation.insert = mutation.upsert
        elif write.base_version:
            mutation.base_version = write.base_version
            if transactional:
                # A mutation that is skipped would leave half a transaction.
                mutation.conflict_resolution_strategy = fail
        return future

    batch_class.put = put_with_write


def _hook_empty_commits(batch_class: Any) -> None:
    """A batch whose only puts went into commits of their own has nothing to send."""
    idle_callback = batch_class.idle_callback

    def send_if_not_empty(self: Any) -> None:
        if self.mutations:
            idle_callback(self)

    batch_class.idle_callback = send_if_not_empty


def _hook_committing() -> None:
    commit = _datastore_api.commit
    process_commit = _datastore_api._process_commit

    def commit_if_allowed(transaction: bytes, retries: Any = None, timeout: Any = None) -> Any:
        batch = context.get_context().commit_batches.get(transaction)
        if batch is not None:
            for future in batch.futures:
                if (write := _write_of(future)) is not None:
                    write.about_to_commit()
        return commit(transaction, retries=retries, timeout=timeout)

    def take_results(rpc: Any, futures: list[Any]) -> None:
        error = rpc.exception()
        if error is None:
            for result, future in zip(rpc.result()._pb.mutation_results, futures, strict=False):
                if (write := _write_of(future)) is not None:
                    _take_result(write, result, future)
        elif _says_that_it_exists(error):
            for future in futures:
                write = _write_of(future)
                if write is not None and write.must_be_new and not future.done():
                    future.set_exception(write.conflicted(0))
        process_commit(rpc, futures)

    _datastore_api.commit = commit_if_allowed
    _datastore_api._process_commit = take_results


def _says_that_it_exists(error: BaseException) -> bool:
    # While other calls are being made, ndb takes an error for one of a nested
    # retry and keeps its text alone.
    return isinstance(error, AlreadyExists) or (
        isinstance(error, exceptions.NestedRetryException) and "already exists" in str(error)
    )


def _write_of(future: Any) -> Write | None:
    write: Write | None = getattr(future, "_userlock_write", None)
    return write


def _take_result(write: Write, result: Any, future: Any) -> None:
    if not result.conflict_detected:
        write.landed(result.version)
        return
    error = write.conflicted(result.version)
    if not future.done():
        future.set_exception(error)


def _hook_deleting(handler: Handler) -> None:
    delete_async = key.Key.delete_async

    def delete_if_allowed(self: Any, *args: Any, **kwargs: Any) -> Any:
        handler.deleting(self)
        return delete_async(self, *args, **kwargs)

    key.Key.delete_async = delete_if_allowed
