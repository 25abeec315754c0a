"""The places in google-cloud-ndb that are hooked into, or used, though they are not public.

Checked before anything touches them: on a release that moved one, the import
of any name of userlock's fails and says which, and what to do.
"""

from __future__ import annotations

import inspect
import pkgutil
from typing import Any

from google.cloud.datastore_v1.types.query import EntityResult

from userlock.ndb.releases import installed_release

#: Each place below google.cloud, with the parameters it is expected to take; () for what is only
#: there.
POINTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ndb.model:_entity_from_protobuf", ("protobuf",)),
    ("ndb.model:_entity_to_ds_entity", ("entity", "set_key")),
    ("ndb.model:Model._put_async", ("self", "kwargs")),
    ("ndb.model:Model._get_or_insert_async", ("_cls", "_name", "args", "kwargs")),
    ("ndb.model:Model._prepare_for_put", ("self",)),
    ("ndb.model:Model._kind_map", ()),
    ("ndb.model:_BaseValue", ("b_val",)),
    ("ndb.model:Property._get_value", ("self", "entity")),
    ("ndb.model:Property.__get__", ("self", "entity")),
    ("ndb.model:ModelKey", ()),
    ("ndb.model:Model._entity_key", ()),
    ("ndb.model:Model._projection", ()),
    ("ndb.model:Model._properties", ()),
    ("ndb.model:Model._values", ()),
    ("ndb.model:Property._name", ()),
    ("ndb.model:Property._repeated", ()),
    ("ndb._datastore_api:lookup", ("key", "options")),
    ("ndb._datastore_api:put", ("entity", "options")),
    ("ndb._datastore_api:delete", ("key", "options")),
    ("ndb._datastore_api:commit", ("transaction", "retries", "timeout")),
    ("ndb._datastore_api:_process_commit", ("rpc", "futures")),
    ("ndb._datastore_api:_datastore_commit", ("mutations", "transaction", "retries", "timeout")),
    ("ndb._datastore_api:_datastore_lookup", ("keys", "read_options", "retries")),
    ("ndb._datastore_api:_datastore_rollback", ("transaction", "retries", "timeout")),
    ("ndb._datastore_api:begin_transaction", ("read_only", "retries", "timeout")),
    ("ndb._datastore_api:rollback", ("transaction", "retries", "timeout")),
    ("ndb._datastore_api:make_call", ("rpc_name", "request", "retries", "timeout", "metadata")),
    ("ndb._datastore_api:_add_routing_info", ("metadata", "request")),
    ("ndb._datastore_api:_complete", ("key_pb",)),
    ("ndb._datastore_api:_NOT_FOUND", ()),
    ("ndb._datastore_api:helpers", ()),
    ("ndb._datastore_api:_LookupBatch.idle_callback", ("self",)),
    ("ndb._datastore_api:_LookupBatch.lookup_callback", ("self", "rpc")),
    ("ndb._datastore_api:_NonTransactionalCommitBatch.put", ("self", "entity_pb")),
    ("ndb._datastore_api:_NonTransactionalCommitBatch.delete", ("self", "key")),
    ("ndb._datastore_api:_NonTransactionalCommitBatch.idle_callback", ("self",)),
    ("ndb._datastore_api:_NonTransactionalCommitBatch.full", ("self",)),
    ("ndb._datastore_api:_TransactionalCommitBatch.put", ("self", "entity_pb")),
    ("ndb._datastore_api:_TransactionalCommitBatch.delete", ("self", "key")),
    ("ndb._batch:get_batch", ("batch_cls", "options")),
    ("ndb._datastore_query:_QueryIteratorImpl.__init__", ("self", "query", "raw")),
    ("ndb._datastore_query:_QueryIteratorImpl._next_batch", ("self",)),
    ("ndb._datastore_query:_Result.__init__", ("self", "result_type", "result_pb")),
    ("ndb._datastore_query:_Result.entity", ("self",)),
    ("ndb._datastore_query:RESULT_TYPE_FULL", ()),
    ("ndb._datastore_query:RESULT_TYPE_KEY_ONLY", ()),
    ("ndb._cache:ContextCache.get_and_validate", ("self", "key")),
    ("ndb.key:Key.delete_async", ("self",)),
    ("ndb.key:Key._from_ds_key", ("ds_key",)),
    ("datastore.key:Key.flat_path", ()),
    ("ndb.context:_state", ()),
    ("ndb.context:Context._use_datastore", ("self", "key", "options")),
    ("ndb.context:Context.cache", ()),
    ("ndb.context:Context.commit_batches", ()),
    ("ndb.context:Context.eventloop", ()),
    ("ndb.context:Context.global_cache", ()),
    ("ndb.context:Context.call_on_transaction_complete", ("self", "callback")),
    ("ndb._transaction:transaction_async_", ("callback",)),
    ("ndb._transaction:_transaction_async", ("context", "callback", "read_only")),
    ("ndb._retry:is_transient_error", ("error",)),
    ("ndb._retry:_DEFAULT_RETRIES", ()),
    ("ndb._retry:_DEFAULT_INITIAL_DELAY", ()),
    ("ndb._retry:_DEFAULT_MAXIMUM_DELAY", ()),
    ("ndb._retry:_DEFAULT_DELAY_MULTIPLIER", ()),
    ("ndb.exceptions:NestedRetryException", ()),
    ("ndb.tasklets:Future.wait", ("self",)),
    ("ndb.tasklets:Future.check_success", ("self",)),
    ("ndb.tasklets:Future.exception", ("self",)),
    ("datastore_v1.types.datastore:Mutation.ConflictResolutionStrategy", ()),
    ("ndb._eventloop:EventLoop", ()),
)

#: What their objects have: with what they are made, and the attributes.
OBJECTS: tuple[tuple[str, tuple[Any, ...], tuple[str, ...]], ...] = (
    ("ndb._eventloop:EventLoop", (), ("idlers",)),
    ("ndb.tasklets:Future", (), ("_exception", "_result")),
    ("ndb._datastore_api:_LookupBatch", (None,), ("options", "todo")),
    (
        "ndb._datastore_api:_NonTransactionalCommitBatch",
        (None,),
        ("options", "mutations", "futures"),
    ),
    ("ndb._datastore_query:_QueryIteratorImpl", (None,), ("_batch",)),
    ("ndb._datastore_query:_Result", (None, EntityResult()), ("result_pb", "result_type")),
)


def missing_points() -> list[str]:
    """The places that the installed releases do not have as they are expected."""
    missing = []
    for where, parameters in POINTS:
        try:
            found = pkgutil.resolve_name(f"google.cloud.{where}")
        except (ImportError, AttributeError):
            missing.append(f"{where} is gone")
            continue
        if parameters:
            takes = _parameters(found)
            if takes[: len(parameters)] != parameters:
                missing.append(f"{where} takes {takes}, not {parameters}")
    return missing or missing_attributes()


def missing_attributes() -> list[str]:
    """What the objects of the installed releases do not have."""
    missing = []
    for where, arguments, attributes in OBJECTS:
        try:
            made = pkgutil.resolve_name(f"google.cloud.{where}")(*arguments)
        except Exception as error:
            missing.append(f"{where} is not made of {arguments}: {error}")
            continue
        missing += [f"{where}.{name} is gone" for name in attributes if not hasattr(made, name)]
    return missing


def _parameters(found: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(inspect.unwrap(found)).parameters)
    except (TypeError, ValueError):
        return ()  # it is no function any more


def check_points() -> None:
    """See that all is as it is expected.

    Raises:
        ImportError: it is not; says what, and what to do.
    """
    missing = missing_points()
    if missing:
        raise ImportError(
            f"userlock cannot protect writes with google-cloud-ndb {installed_release()} and "
            f"google-cloud-datastore {installed_release('google-cloud-datastore')}: "
            f"{'; '.join(missing)}. Install releases that userlock supports "
            f"(google-cloud-ndb>=2.3,<3, google-cloud-datastore>=2.21), or a newer userlock."
        )
