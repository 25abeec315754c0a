"""Hooks on the way out: puts, deletes and commits."""

from __future__ import annotations

import functools
from typing import Any

from google.api_core.exceptions import AlreadyExists
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.ndb import (
    _batch,
    _datastore_api,
    _transaction,
    context,
    exceptions,
    key,
    model,
    tasklets,
)

from userlock.ndb.hooks.runtime import model_of, note_in_flight, wait_for_key
from userlock.ndb.watch import Handler, Write

_FAIL = datastore_types.Mutation.ConflictResolutionStrategy.FAIL


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
    _datastore_api.helpers = _Helpers(_datastore_api.helpers)
    _hook_plain_puts(_datastore_api._NonTransactionalCommitBatch)
    _hook_transactional_puts(_datastore_api._TransactionalCommitBatch)


def _hook_plain_puts(batch_class: Any) -> None:
    put = batch_class.put
    send = batch_class.idle_callback

    def put_with_write(self: Any, entity_pb: Any) -> Any:
        write: Write | None = entity_pb.__dict__.get("_userlock_write")
        if write is None:
            return put(self, entity_pb)
        if write.must_be_new:
            return _batch.get_batch(_inserts(batch_class, put), self.options).put(entity_pb)
        future = put(self, entity_pb)
        future._userlock_write = write
        if write.base_version:
            self.mutations[-1]._pb.base_version = write.base_version
        return future

    def send_if_not_empty(self: Any) -> None:
        if self.mutations:  # its only puts may have gone to the inserts
            send(self)

    batch_class.put = put_with_write
    batch_class.idle_callback = send_if_not_empty


@functools.cache
def _inserts(batch_class: Any, put: Any) -> Any:
    """The class of batches that insert, sent beside the ordinary ones."""

    class Inserts(batch_class):
        """New entities, in one commit. If one of them exists, each in a commit of its own.

        An insert that fails takes its whole commit with it.
        """

        def put(self, entity_pb: Any) -> Any:
            future = put(self, entity_pb)
            future._userlock_write = entity_pb.__dict__["_userlock_write"]
            mutation = self.mutations[-1]
            mutation.insert = mutation.upsert
            return future

        def idle_callback(self) -> None:
            self._send(self.mutations, self.futures)

        def _send(self, mutations: list[Any], futures: list[Any]) -> None:
            rpc = _datastore_api._datastore_commit(
                mutations, None, retries=self.options.retries, timeout=self.options.timeout
            )
            rpc.add_done_callback(functools.partial(self._answered, mutations, futures))

        def _answered(self, mutations: list[Any], futures: list[Any], rpc: Any) -> None:
            if not _says_that_it_exists(rpc.exception()):
                _datastore_api._process_commit(rpc, futures)
            elif len(mutations) > 1:
                for mutation, future in zip(mutations, futures, strict=True):
                    self._send([mutation], [future])
            elif (write := futures[0]._userlock_write).may_overwrite:
                write.overwriting()
                mutations[0].upsert = mutations[0].insert
                self._send(mutations, futures)
            else:
                _datastore_api._process_commit(rpc, futures)

    return Inserts


def _hook_transactional_puts(batch_class: Any) -> None:
    put = batch_class.put

    def put_with_write(self: Any, entity_pb: Any) -> Any:
        future = put(self, entity_pb)
        mutation = self.mutations[-1]
        first = _first_of_its_key(self, mutation.upsert.key)
        write: Write | None = entity_pb.__dict__.get("_userlock_write")
        if write is None:
            return future
        _refuse_when_over(self, write)
        future._userlock_write = write
        # A second mutation of one entity builds on the first.
        if write.must_be_new and first:
            mutation.insert = mutation.upsert
        elif write.base_version and first:
            _fence_in_transaction(mutation, write)
        return future

    batch_class.put = put_with_write


def _refuse_when_over(batch: Any, write: Write) -> None:
    """A callback on commit still runs in the transaction's context: its puts go nowhere."""
    if batch.__dict__.get("_userlock_over"):
        raise write.too_late()


def _first_of_its_key(batch: Any, key_pb: Any) -> bool:
    """Whether this is the transaction's first mutation of the entity."""
    if not _datastore_api._complete(key_pb):
        return True
    seen: set[bytes] = batch.__dict__.setdefault("_userlock_seen", set())
    serialized = key_pb._pb.SerializeToString(deterministic=True)
    first = serialized not in seen
    seen.add(serialized)
    return first


def _fence_in_transaction(mutation: Any, write: Write) -> None:
    mutation._pb.base_version = write.base_version
    # A mutation that is skipped would leave half a transaction.
    mutation.conflict_resolution_strategy = _FAIL


def hook_deleting(handler: Handler) -> None:
    """Ask before a key is deleted, and carry the write from the key to the mutation."""
    delete_async = key.Key.delete_async
    batch_class = _datastore_api._NonTransactionalCommitBatch
    batch_delete = batch_class.delete

    @functools.wraps(delete_async)
    def delete_if_allowed(self: Any, *args: Any, **kwargs: Any) -> Any:
        cls = model_of(self.kind())
        if cls is None or not issubclass(cls, handler.tracked):
            return delete_async(self, *args, **kwargs)
        wait_for_key(self)
        write = handler.deleting(self)
        self._key._userlock_write = write
        future = delete_async(self, *args, **kwargs)
        if write is not None:
            write.begun(future)
        note_in_flight(self, future)
        return future

    def delete_with_write(self: Any, ds_key: Any) -> Any:
        future = batch_delete(self, ds_key)
        write: Write | None = ds_key.__dict__.pop("_userlock_write", None)
        mutation = self.mutations[-1]
        transactional = isinstance(self, _datastore_api._TransactionalCommitBatch)
        first = not transactional or _first_of_its_key(self, mutation.delete)
        if write is not None:
            _refuse_when_over(self, write)
            future._userlock_write = write
            if write.base_version and transactional and first:
                _fence_in_transaction(mutation, write)
            elif write.base_version and first:
                mutation._pb.base_version = write.base_version
        return future

    key.Key.delete_async = delete_if_allowed
    batch_class.delete = delete_with_write


# --- commits --------------------------------------------------------------------------------


def hook_committing(handler: Handler) -> None:
    """Check before a transaction commits, and take each mutation's result."""
    _hook_beginning(handler)
    commit = _datastore_api.commit
    process_commit = _datastore_api._process_commit

    @tasklets.tasklet
    def commit_if_allowed(transaction: bytes, retries: Any = None, timeout: Any = None) -> Any:
        batch = context.get_context().commit_batches.get(transaction)
        writes = [] if batch is None else _writes_of(batch)
        for write, _ in writes:
            write.about_to_commit()
        fenced = [(write, key_pb) for write, key_pb in writes if write.base_version]
        if fenced:
            yield _check_versions(transaction, fenced)
        if any(write.may_overwrite for write, _ in writes):
            yield _overwrite_existing(transaction, batch)
        try:
            yield commit(transaction, retries=retries, timeout=timeout)
        except AlreadyExists as error:
            new = [(write, key_pb) for write, key_pb in writes if write.must_be_new]
            if not new:
                raise
            existing = yield _find_existing(new)
            raise existing.conflicted(0) from error
        if batch is not None:
            batch._userlock_over = True

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


def _hook_beginning(handler: Handler) -> None:
    """A transaction sees what was there at its beginning: let our own writes be.

    Before ndb's retry wrapper, which would take errors of the transaction for
    errors of a call that is still under way.
    """
    start = _transaction.transaction_async_

    def start_after_writes(*args: Any, **kwargs: Any) -> Any:
        handler.beginning_transaction()
        return start(*args, **kwargs)

    _transaction.transaction_async_ = start_after_writes


@tasklets.tasklet
def _find_existing(new: list[tuple[Write, Any]]) -> Any:
    """Which of the creations is of an entity that exists. Datastore's error does not tell."""
    if len(new) == 1:
        return new[0][0]
    answer = yield _datastore_api._datastore_lookup(
        [key_pb for _, key_pb in new], datastore_types.ReadOptions()
    )
    found = {r.entity.key.SerializeToString(deterministic=True) for r in answer._pb.found}
    for write, key_pb in new:
        if key_pb._pb.SerializeToString(deterministic=True) in found:
            return write
    return new[0][0]


@tasklets.tasklet
def _overwrite_existing(transaction: bytes, batch: Any) -> Any:
    """Creations of what exists become upserts: refused, they would take the whole commit along."""
    creations = {
        mutation.insert.key._pb.SerializeToString(deterministic=True): (mutation, write)
        for mutation, future in zip(batch.mutations, batch.futures, strict=True)
        if (write := _write_of(future)) is not None and write.may_overwrite and mutation.insert
    }
    if not creations:
        return
    options = datastore_types.ReadOptions(transaction=transaction)
    keys = [mutation.insert.key for mutation, _ in creations.values()]
    answer = yield _datastore_api._datastore_lookup(keys, options, retries=0)
    for found in answer._pb.found:
        mutation, write = creations[found.entity.key.SerializeToString(deterministic=True)]
        write.overwriting()
        mutation.upsert = mutation.insert


def _writes_of(batch: Any) -> list[tuple[Write, Any]]:
    """The writes in a transaction's batch, each with the key it is for."""
    return [
        (
            write,
            mutation.delete if "delete" in mutation else (mutation.insert or mutation.upsert).key,
        )
        for mutation, future in zip(batch.mutations, batch.futures, strict=True)
        if (write := _write_of(future)) is not None
    ]


@tasklets.tasklet
def _check_versions(transaction: bytes, fenced: list[tuple[Write, Any]]) -> Any:
    """Raise for the first entity that was read before the transaction and has changed since.

    Datastore would refuse the commit as well, but as contention; ndb would
    then run the function again and again, each time with the same old object.
    """
    options = datastore_types.ReadOptions(transaction=transaction)
    keys = [key_pb for _, key_pb in fenced]
    answer = yield _datastore_api._datastore_lookup(keys, options, retries=0)
    # What is missing is reported with the version of the snapshot: a later one
    # than was read means that the entity was deleted.
    versions = {
        result.entity.key.SerializeToString(deterministic=True): result.version
        for result in (*answer._pb.found, *answer._pb.missing)
    }
    for write, key_pb in fenced:
        version = versions.get(key_pb._pb.SerializeToString(deterministic=True), 0)
        if version > write.base_version:
            raise write.conflicted(version)
        # An earlier version: the transaction began before what was read. Its
        # commit is refused as contention, and the next attempt sees it.


def _says_that_it_exists(error: BaseException | None) -> bool:
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
