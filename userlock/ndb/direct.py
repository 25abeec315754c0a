"""Access to the library's own rows: requests past ndb (a fifth of its calls), and packed fields.

Each write builds on the version that was read, which Datastore compares. So a request may be sent
again: the second copy of a write that has landed is refused.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Sequence
from typing import Any, ClassVar

import grpc
from google.api_core.exceptions import from_grpc_error
from google.api_core.retry import Retry
from google.cloud import ndb
from google.cloud.datastore_v1.types import datastore as datastore_types
from google.cloud.datastore_v1.types import query as query_types
from google.cloud.ndb import model as ndb_model

from userlock.callsite import here
from userlock.datastore_rpc import Endpoint, Entity, Mutation, Query
from userlock.errors import WriteNotFenced
from userlock.ndb.capabilities import honours_base_version, why_not_fenced
from userlock.ndb.commits import deletes, is_transient, key_of
from userlock.ndb.context import current_context, request_notes
from userlock.ndb.model import Model
from userlock.ndb.patches import name_in, raw_key_of
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import orders, origin, version_of
from userlock.ndb.stub import stamped_message
from userlock.ndb.wire import note_passed
from userlock.waits import run

_CommitRequest: Any = datastore_types.CommitRequest.pb()
_translated: Any = from_grpc_error
_AND: Any = query_types.CompositeFilter.Operator.AND
_EQUAL: Any = query_types.PropertyFilter.Operator.EQUAL
_HAS_ANCESTOR: Any = query_types.PropertyFilter.Operator.HAS_ANCESTOR
_NOT_FINISHED: Any = query_types.QueryResultBatch.MoreResultsType.NOT_FINISHED

_encode = json.JSONEncoder(separators=(",", ":")).encode

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
    if not honours_base_version(client):
        raise WriteNotFenced(
            key=rows[0].key, put_at=here(), deleting=delete, **why_not_fenced(client)
        )
    request = _CommitRequest(mode=_CommitRequest.NON_TRANSACTIONAL)
    for row in rows:
        changed = {"delete": raw_key_of(row.key)} if delete else {"upsert": _message_of(row)}
        request.mutations.append(Mutation(base_version=version_of(row), **changed))
    results = list(ask("send_commit", request))
    refused = [n for n, result in enumerate(results) if result.conflict_detected]
    if refused:
        answer = ask("lookup", [key_of(request.mutations[n]) for n in refused])
        found = {name_in(each.entity.key): each for each in answer.found}
        missing = {name_in(each.entity.key): each for each in answer.missing}
        for n in refused:
            results[n] = _landed_before(request.mutations[n], found, missing)
    pairs = zip(rows, request.mutations, results, strict=True)
    return [_settled(row, mutation, landed) for row, mutation, landed in pairs]


def _landed_before(mutation: Any, found: Any, missing: Any) -> Any:
    """Return what a refused mutation has left, if it is itself that it has met; else None."""
    name = name_in(key_of(mutation))
    if deletes(mutation):
        return missing.get(name)
    stored, own = found.get(name), mutation.upsert.properties["write_id"]
    return stored if stored and stored.entity.properties["write_id"] == own else None


def _settled(row: Any, mutation: Any, landed: Any) -> bool:
    """Note the outcome of a mutation; return whether it has landed."""
    ledger = request_notes().ledger
    if landed is None:
        ledger.failed(row.key)
    elif deletes(mutation):
        ledger.deleted(row.key, mutation.base_version)
    else:
        stamp = row._userlock_stamp._replace(version=landed.version, order=next(orders))
        row._userlock_stamp = stamp
        ledger.saw(stamp)
    return landed is not None


#: The field of a value's type in a message.
_FIELDS = {type(None): "null_value", str: "string_value", bytes: "blob_value", int: "integer_value"}


@functools.cache
def _properties_of(cls: Any) -> list[tuple[str, bool]]:
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
        setattr(stored, _FIELDS[type(value)], 0 if value is None else value)
    return message


class Field:
    """A field of a `PackedModel`: an attribute with a JSON value, no property of ndb. Those
    of a row that was read are decoded when the first one is asked for."""

    def __init__(self, default: Any = None) -> None:
        self._default = default

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name
        owner._defaults = {**owner._defaults, name: self._default}

    def __get__(self, row: Any, owner: Any = None) -> Any:
        return self if row is None else row._decoded()[self._name]


class PackedModel(Model):
    """A model with fields, which are stored together in `data`, a `BlobProperty` of the subclass:
    as a JSON object, and after a newline the bytes of the field that `_payload` names, unless None.

    ndb makes some 70 calls for each property of an entity that it writes.
    """

    _write_policy = WritePolicy.ABSTRACT
    _payload: ClassVar[str]
    #: All fields, with their defaults, which are not stored.
    _defaults: ClassVar[dict[str, Any]] = {}
    data: Any

    def __init__(self, **values: Any) -> None:
        given = values.keys() & self._defaults
        if given:  # ndb gives none of a row that it reads
            self.__dict__.update(self._defaults)
            for name in given:
                self.__dict__[name] = values.pop(name)
        super().__init__(**values)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the values of all fields. Raises ValueError for a malformed row."""
        mine = self._decoded()
        return {name: mine[name] for name in self._defaults}

    def _decoded(self) -> dict[str, Any]:
        """Return the row's own attributes, the fields among them."""
        mine = self.__dict__
        if not mine.keys() >= self._defaults.keys():
            found = self._defaults if self.data is None else self._fields_in(self.data)
            for name, value in found.items():
                mine.setdefault(name, value)
        return mine

    @classmethod
    def _fields_in(cls, data: bytes) -> dict[str, Any]:
        head, has_payload, payload = data.partition(b"\n")
        fields = json.loads(head)
        if type(fields) is not dict:
            raise ValueError("the row's data is no JSON object")
        if has_payload:
            fields[cls._payload] = payload
        return {name: fields.get(name, default) for name, default in cls._defaults.items()}

    @classmethod
    def stored(cls, key: Any) -> tuple[dict[str, Any], Any] | None:
        """Return all fields of a row and its (raw) properties; None if it is missing. Past ndb.

        Raises ValueError: it is malformed; and errors of `ask`.
        """
        found = ask("lookup", [raw_key_of(key)]).found
        if not found:
            return None
        properties = found[0].entity.properties
        data = properties["data"].blob_value
        return cls._fields_in(data if data[:1] == b"{" else zlib.decompress(data)), properties

    @classmethod
    def some_below(cls, root: Any, name: str, value: str, most: int) -> tuple[list[Any], bool]:
        """Return the first rows of a group by a property, in one RPC past ndb; and if it is all."""
        below = {"property": {"name": "__key__"}, "op": _HAS_ANCESTOR}
        below["value"] = {"key_value": raw_key_of(root)}
        equal = {"property": {"name": name}, "op": _EQUAL, "value": {"string_value": value}}
        both = {"op": _AND, "filters": [{"property_filter": each} for each in (below, equal)]}
        query = Query(
            kind=[{"name": cls._get_kind()}],
            limit={"value": most + 1},
            filter={"composite_filter": both},
        )
        asked = origin(None)
        batch = ask("run_query", query, root.namespace() or "")
        found = batch.entity_results
        messages = (stamped_message(each.entity, (each.version, asked, None)) for each in found)
        is_all = batch.more_results != _NOT_FINISHED and len(found) <= most
        return list(map(ndb_model._entity_from_protobuf, messages)), is_all

    def _prepare_for_put(self) -> None:
        mine, changed = self._decoded(), {}
        for name, default in self._defaults.items():
            if mine[name] != default:
                changed[name] = mine[name]
        payload = changed.pop(self._payload, None)
        data = _encode(changed).encode()
        self.data = data if payload is None else b"%b\n%b" % (data, payload)
        super()._prepare_for_put()
