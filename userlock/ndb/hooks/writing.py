"""Hooks on the way out: puts and deletes, until they stand in a commit."""

from __future__ import annotations

import copy
import functools
from typing import Any

from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.ndb import _batch, _datastore_api, key, model, tasklets

from userlock.ndb.hooks.calls import serialized
from userlock.ndb.hooks.commits import batch_of_inserts, batch_of_new_ids
from userlock.ndb.hooks.comparing import batch_of_compared
from userlock.ndb.hooks.runtime import (
    current_context,
    model_of,
    note_in_flight,
    uses_datastore,
    wait_for_key,
)
from userlock.ndb.watch import Handler, Write


class _Helpers:
    """google.cloud.datastore.helpers as ndb's put sees it: a write stays with its message."""

    def __init__(self, helpers: Any) -> None:
        self._helpers = helpers

    def entity_to_protobuf(self, entity: Any) -> Any:
        protobuf = self._helpers.entity_to_protobuf(entity)
        write = entity.__dict__.get("_userlock_write")
        if write is not None:
            protobuf.__dict__["_userlock_write"] = write
        return protobuf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._helpers, name)


def hook_putting(handler: Handler) -> None:
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
    _hook_base_class(tracked)
    _datastore_api.helpers = _Helpers(_datastore_api.helpers)
    # This one first: its `delete` calls the other's.
    _hook_transactional_batch(_datastore_api._TransactionalCommitBatch)
    _hook_plain_batch(_datastore_api._NonTransactionalCommitBatch)


def _hook_base_class(tracked: Any) -> None:
    """`ndb.Model.put_async(entity)`, past the method of the entity's own class, is its put too."""
    put_async = model.Model._put_async
    put_checked = tracked._put_async

    @functools.wraps(put_async)
    def put_as_its_class_does(self: Any, **kwargs: Any) -> Any:
        if isinstance(self, tracked) and "_userlock_putting" not in self.__dict__:
            return put_checked(self, **kwargs)
        return put_async(self, **kwargs)

    model.Model._put_async = model.Model.put_async = put_as_its_class_does


def _hook_plain_batch(batch_class: Any) -> None:
    put, delete = batch_class.put, batch_class.delete
    inserts = batch_of_inserts(batch_class, add_put)
    new_ids = batch_of_new_ids(batch_class, add_put)
    compared = batch_of_compared(batch_class, add_put, delete)

    def put_with_write(self: Any, entity_pb: Any) -> Any:
        write: Write | None = entity_pb.__dict__.get("_userlock_write")
        if write is None:
            return put(self, entity_pb)
        if write.must_be_new:
            future = _batch.get_batch(inserts, self.options).put(entity_pb)
        elif write.base_version and write.by_comparison:
            future = _batch.get_batch(compared, self.options).put(entity_pb)
        elif write.base_version:
            future = add_put(self, entity_pb)
            self.mutations[-1]._pb.base_version = write.base_version
        elif not _datastore_api._complete(entity_pb.key):
            future = _batch.get_batch(new_ids, self.options).put(entity_pb)
        else:
            future = add_put(self, entity_pb)
        write.carried = True
        future._userlock_write = write
        return future

    def delete_with_write(self: Any, ds_key: Any) -> Any:
        write: Write | None = ds_key.__dict__.pop("_userlock_write", None)
        if write is None:
            return delete(self, ds_key)
        if write.base_version and write.by_comparison:
            future = _batch.get_batch(compared, self.options).delete(ds_key)
        else:
            future = delete(self, ds_key)
            if write.base_version:
                self.mutations[-1]._pb.base_version = write.base_version
        write.carried = True
        future._userlock_write = write
        return future

    batch_class.put = put_with_write
    batch_class.delete = delete_with_write


def add_put(batch: Any, entity_pb: Any) -> Any:
    """What ndb's `put` does to a batch outside of transactions, but for the future's name.

    ndb makes that of the whole entity as text, which takes a twentieth of the
    time of a put; more than all that userlock does in one.
    """
    future = tasklets.Future("put")
    batch.mutations.append(datastore_types.Mutation(upsert=entity_pb))
    batch.futures.append(future)
    return future


def _hook_transactional_batch(batch_class: Any) -> None:
    put, delete = batch_class.put, batch_class.delete

    def put_with_write(self: Any, entity_pb: Any) -> Any:
        new_id = not _datastore_api._complete(entity_pb.key)
        future = put(self, entity_pb)
        mutation = self.mutations[-1]
        first = _first_of_its_key(self, mutation.upsert.key)
        if new_id:  # its key is known, and seen, as soon as its id has been allocated
            future.add_done_callback(lambda done: _first_of_its_key(self, mutation.upsert.key))
        write: Write | None = entity_pb.__dict__.get("_userlock_write")
        if write is None:
            return future
        _refuse_when_over(self, write)
        write.carried = True
        future._userlock_write, future._userlock_mutation = write, mutation
        future._userlock_new_id = new_id
        # A second mutation of one entity builds on the first.
        if write.must_be_new and first:
            mutation.insert = mutation.upsert
        elif first:
            _fence_in_transaction(mutation, write)
        return future

    def delete_with_write(self: Any, ds_key: Any) -> Any:
        write: Write | None = ds_key.__dict__.pop("_userlock_write", None)
        future = delete(self, ds_key)
        mutation = self.mutations[-1]
        first = _first_of_its_key(self, mutation.delete)
        if write is None:
            return future
        _refuse_when_over(self, write)
        write.carried = True
        future._userlock_write, future._userlock_mutation = write, mutation
        if first:
            _fence_in_transaction(mutation, write)
        return future

    batch_class.put = put_with_write
    batch_class.delete = delete_with_write


def _refuse_when_over(batch: Any, write: Write) -> None:
    """A callback on commit still runs in the transaction's context: its puts go nowhere."""
    if batch.__dict__.get("_userlock_over"):
        raise write.too_late()


def _first_of_its_key(batch: Any, key_pb: Any) -> bool:
    """Whether this is the transaction's first mutation of the entity."""
    if not _datastore_api._complete(key_pb):
        return True
    seen: set[bytes] = batch.__dict__.setdefault("_userlock_seen", set())
    name = serialized(key_pb)
    first = name not in seen
    seen.add(name)
    return first


def _fence_in_transaction(mutation: Any, write: Write) -> None:
    if not write.base_version or write.by_comparison:
        return  # what is compared is compared before the commit
    mutation._pb.base_version = write.base_version
    # A mutation that is skipped would leave half a transaction.
    strategies = datastore_types.Mutation.ConflictResolutionStrategy
    mutation.conflict_resolution_strategy = strategies.FAIL


def hook_deleting(handler: Handler) -> None:
    """Ask before a key is deleted, and let a key carry the write to the mutation.

    One of its own: the application's may be deleted elsewhere at the same
    time, by another thread or by the model's hook, as another write.
    """
    delete_async = key.Key.delete_async

    @functools.wraps(delete_async)
    def delete_if_allowed(self: Any, *args: Any, **kwargs: Any) -> Any:
        cls = model_of(self.kind())
        if cls is None or not issubclass(cls, handler.tracked):
            return delete_async(self, *args, **kwargs)
        wait_for_key(self)
        write = handler.deleting(self)
        ds_key = copy.copy(self._key)
        ds_key._userlock_write = write
        future = delete_async(key.Key._from_ds_key(ds_key), *args, **kwargs)
        if write is not None:
            if not write.carried:
                write.carried = not uses_datastore(self, current_context(), kwargs)
            write.begun(future)
        note_in_flight(self, future)
        return future

    key.Key.delete_async = delete_if_allowed
