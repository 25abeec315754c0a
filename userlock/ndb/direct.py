"""Requests about the library's own rows, past ndb: a fifth of its calls for each row.

Each write builds on the version that was read, which Datastore compares. So a request may be sent
again: the second copy of a write that has landed is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import grpc
from google.api_core.exceptions import from_grpc_error
from google.api_core.retry import Retry
from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as datastore_types

from userlock.callsite import here
from userlock.datastore_rpc import Endpoint, Entity, Mutation
from userlock.errors import WriteNotFenced
from userlock.ndb.capabilities import honours_base_version, why_not_fenced
from userlock.ndb.commits import deletes, is_transient, key_of
from userlock.ndb.context import current_context, request_notes
from userlock.ndb.patches import name_in, raw_key_of
from userlock.ndb.provenance import orders, version_of
from userlock.ndb.wire import note_passed
from userlock.waits import run

_CommitRequest: Any = datastore_types.CommitRequest.pb()
_translated: Any = from_grpc_error

#: For one RPC, as ndb's. In seconds.
_RPC_SECONDS = 60.0
#: How it is asked again after a transient error: the first pause and the longest, the factor, and
#: the time for all, in seconds. Its keyword has changed from `deadline` to `timeout`.
again = Retry(is_transient, 0.05, 1.0, 2.0, 5.0)


def ask(rpc: str, argument: Any, namespace: str | None = None) -> Any:
    """Return the answer to an RPC of `Endpoint`, of the current context's client.

    Raises GoogleAPICallError, or RetryError if Datastore does not answer when it is asked again.
    """
    client, commits = current_context().client, rpc == "send_commit"
    # What is read needs no stamp.
    endpoint = Endpoint(client, namespace, None if commits else client.stub._userlock_stub)

    def asked() -> Any:
        if commits:
            note_passed(argument)
        try:
            return run(getattr(endpoint, rpc), argument, _RPC_SECONDS)
        except grpc.RpcError as error:
            raise _translated(error) from error

    return again(asked)()


def swap(rows: Sequence[Any], *, delete: bool = False) -> list[bool]:
    """Write or delete rows, each if it is as it was read; return which were.

    In one commit, outside of transactions. For models with a `write_id` whose other properties hold
    texts, bytes and integers; indexed are those of a `StringProperty`, and computed ones. A write
    that meets itself has landed: its reply was lost. So has a delete of a row that is gone.

    Raises WriteNotFenced: the server takes no notice of versions. After an error of `ask` it is
    not known which rows are written.
    """
    client = current_context().client
    honoured = honours_base_version(client)
    if not honoured:
        raise WriteNotFenced(
            key=rows[0].key, put_at=here(), deleting=delete, **why_not_fenced(client, honoured)
        )
    request = _CommitRequest(mode=_CommitRequest.NON_TRANSACTIONAL)
    for row in rows:
        changed = {"delete": raw_key_of(row.key)} if delete else {"upsert": _message_of(row)}
        request.mutations.append(Mutation(base_version=version_of(row), **changed))
    pairs = list(zip(request.mutations, ask("send_commit", request), strict=True))
    refused = [mutation for mutation, result in pairs if result.conflict_detected]
    before = _landed_before(refused) if refused else {}
    landed = (
        before.get(name_in(key_of(mutation))) if result.conflict_detected else result
        for mutation, result in pairs
    )
    return list(map(_settled, rows, request.mutations, landed))


def _landed_before(refused: Sequence[Any]) -> dict[Any, Any]:
    """Return what those of the refused mutations that had landed have left, by name of the key."""
    answer = ask("lookup", [key_of(each) for each in refused])
    found = {name_in(each.entity.key): each for each in answer.found}
    missing = {name_in(each.entity.key): each for each in answer.missing}
    landed = {}
    for each in refused:
        name = name_in(key_of(each))
        if deletes(each):
            landed[name] = missing.get(name)
        elif name in found:
            own, stored = each.upsert, found[name]
            if stored.entity.properties["write_id"] == own.properties["write_id"]:
                landed[name] = stored
    return landed


def _settled(row: Any, mutation: Any, landed: Any) -> bool:
    """Note the outcome of a mutation; return whether it has landed."""
    ledger = request_notes().ledger
    if landed is None:
        ledger.refused(row.key, mutation.base_version)
    elif deletes(mutation):
        ledger.deleted(row.key, mutation.base_version)
    else:
        stamp = row._userlock_stamp._replace(version=landed.version, order=next(orders))
        row._userlock_stamp = stamp
        ledger.saw(stamp)
    return landed is not None


@functools.cache
def _properties_of(cls: Any) -> list[tuple[str, bool]]:
    """Return the names of the properties of a model, and whether they are indexed."""
    indexed = ndb.StringProperty, ndb.ComputedProperty
    return [
        (name, isinstance(each, indexed))
        for name, each in vars(cls).items()
        if isinstance(each, ndb.Property)
    ]


def _message_of(row: Any) -> Any:
    """Return the (raw) message of a row, as ndb makes it."""
    row._userlock_new_write_id(row)
    row._prepare_for_put()
    cls: Any = type(row)
    message = Entity(key=raw_key_of(row.key))
    for name, indexed in _properties_of(cls):
        value, stored = getattr(row, name), message.properties[name]
        stored.exclude_from_indexes = not indexed
        match value:
            case None:
                stored.null_value = 0
            case str():
                stored.string_value = value
            case bytes():
                stored.blob_value = value
            case int():
                stored.integer_value = value
            case _:
                raise TypeError(f"a value of {type(value).__name__} in {name}")
    return message
