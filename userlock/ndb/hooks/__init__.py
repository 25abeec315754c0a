"""Every touch of google-cloud-ndb's internals, and nothing else.

ndb has no public way to learn the version an entity was read at, to send a
`base_version` with a put, or to refuse a put before it is sent. This room
hooks into the few places where that can be done, and hands what passes there
to a `watch.Handler`. Written against google-cloud-ndb 2.3 to 2.7.

`install` checks each place first. On a release of ndb that moved one, the
import of any name of userlock's fails and says which; protection is never lost
silently.
"""

from __future__ import annotations

import inspect
from typing import Any

from google.cloud.datastore.key import Key as DatastoreKey
from google.cloud.ndb import __version__ as ndb_version
from google.cloud.ndb import (
    _batch,
    _cache,
    _datastore_api,
    _datastore_query,
    _eventloop,
    _retry,
    _transaction,
    context,
    exceptions,
    key,
    model,
    tasklets,
)

from userlock.ndb.hooks.attributes import watch_attributes
from userlock.ndb.hooks.commits import hook_plain_commits
from userlock.ndb.hooks.creating import Creator
from userlock.ndb.hooks.futures import observe, untold_error
from userlock.ndb.hooks.reading import hook_caches, hook_loading
from userlock.ndb.hooks.runtime import (
    cached_entity,
    current_context,
    current_transaction,
    forget_cached,
    id_of,
    in_transaction,
    is_complete,
    key_of,
    model_of,
    note_in_flight,
    transaction_notes,
    wait_for,
    wait_for_entity,
    wait_for_key,
    when_transaction_ends,
)
from userlock.ndb.hooks.transactions import hook_transactions
from userlock.ndb.hooks.values import reader_of
from userlock.ndb.hooks.writing import hook_deleting, hook_putting
from userlock.ndb.watch import Handler

__all__ = [
    "Creator",
    "cached_entity",
    "current_context",
    "current_transaction",
    "forget_cached",
    "id_of",
    "in_transaction",
    "install",
    "is_complete",
    "key_of",
    "missing_points",
    "model_of",
    "note_in_flight",
    "observe",
    "reader_of",
    "transaction_notes",
    "untold_error",
    "wait_for",
    "wait_for_entity",
    "wait_for_key",
    "watch_attributes",
    "when_transaction_ends",
]

_api = _datastore_api

#: Each place, with the parameters it is expected to take. () for what is only there.
_POINTS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (model, "_entity_from_protobuf", ("protobuf",)),
    (model, "_entity_to_ds_entity", ("entity", "set_key")),
    (model.Model, "_put_async", ("self", "kwargs")),
    (model.Model, "_get_or_insert_async", ("_cls", "_name", "args", "kwargs")),
    (model.Model, "_prepare_for_put", ("self",)),
    (model.Model, "_kind_map", ()),
    (model, "_BaseValue", ("b_val",)),
    (model.Property, "_get_value", ("self", "entity")),
    (model.Property, "__get__", ("self", "entity")),
    (model, "ModelKey", ()),
    (model.Model, "_entity_key", ()),
    (_api, "lookup", ("key", "options")),
    (_api, "put", ("entity", "options")),
    (_api, "delete", ("key", "options")),
    (_api, "commit", ("transaction", "retries", "timeout")),
    (_api, "_process_commit", ("rpc", "futures")),
    (_api, "_datastore_commit", ("mutations", "transaction", "retries", "timeout")),
    (_api, "_datastore_lookup", ("keys", "read_options", "retries")),
    (_api, "_datastore_rollback", ("transaction", "retries", "timeout")),
    (_api, "begin_transaction", ("read_only", "retries", "timeout")),
    (_api, "rollback", ("transaction", "retries", "timeout")),
    (_api, "make_call", ("rpc_name", "request", "retries", "timeout", "metadata")),
    (_api, "_add_routing_info", ("metadata", "request")),
    (_api, "_complete", ("key_pb",)),
    (_api, "_NOT_FOUND", ()),
    (_api, "helpers", ()),
    (_api._LookupBatch, "idle_callback", ("self",)),
    (_api._LookupBatch, "lookup_callback", ("self", "rpc")),
    (_api._NonTransactionalCommitBatch, "put", ("self", "entity_pb")),
    (_api._NonTransactionalCommitBatch, "delete", ("self", "key")),
    (_api._NonTransactionalCommitBatch, "idle_callback", ("self",)),
    (_api._NonTransactionalCommitBatch, "full", ("self",)),
    (_api._TransactionalCommitBatch, "put", ("self", "entity_pb")),
    (_api._TransactionalCommitBatch, "delete", ("self", "key")),
    (_batch, "get_batch", ("batch_cls", "options")),
    (_datastore_query._QueryIteratorImpl, "__init__", ("self", "query", "raw")),
    (_datastore_query._QueryIteratorImpl, "_next_batch", ("self",)),
    (_datastore_query._Result, "entity", ("self",)),
    (_datastore_query, "RESULT_TYPE_FULL", ()),
    (_cache.ContextCache, "get_and_validate", ("self", "key")),
    (key.Key, "delete_async", ("self",)),
    (DatastoreKey, "flat_path", ()),
    (context, "_state", ()),
    (context.Context, "_use_datastore", ("self", "key", "options")),
    (context.Context, "call_on_transaction_complete", ("self", "callback")),
    (_transaction, "transaction_async_", ("callback",)),
    (_transaction, "_transaction_async", ("context", "callback", "read_only")),
    (_retry, "is_transient_error", ("error",)),
    (_retry, "_DEFAULT_RETRIES", ()),
    (_retry, "_DEFAULT_INITIAL_DELAY", ()),
    (_retry, "_DEFAULT_MAXIMUM_DELAY", ()),
    (_retry, "_DEFAULT_DELAY_MULTIPLIER", ()),
    (exceptions, "NestedRetryException", ()),
    (tasklets.Future, "wait", ("self",)),
    (tasklets.Future, "check_success", ("self",)),
    (tasklets.Future, "exception", ("self",)),
)


_GONE: Any = object()


def missing_points() -> list[str]:
    """The hook points that this release of ndb does not have as they are expected."""
    missing = []
    for owner, name, parameters in _POINTS:
        found = getattr(owner, name, _GONE)
        where = f"{getattr(owner, '__name__', owner)}.{name}"
        if found is _GONE:
            missing.append(f"{where} is gone")
        elif parameters:
            takes = tuple(inspect.signature(inspect.unwrap(found)).parameters)
            if takes[: len(parameters)] != parameters:
                missing.append(f"{where} takes {takes}, not {parameters}")
    if not hasattr(_eventloop.EventLoop(), "idlers"):
        missing.append("_eventloop.EventLoop.idlers is gone")
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
    hook_loading(handler)
    hook_caches(handler)
    hook_putting(handler)
    hook_deleting(handler)
    hook_plain_commits()
    hook_transactions(handler)
