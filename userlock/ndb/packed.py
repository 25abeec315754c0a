"""Rows in which what no query needs is packed into one property.

ndb makes some 70 calls for each property of an entity that it writes.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, ClassVar

from google.cloud.datastore_v1.types import query as query_types
from google.cloud.ndb import model as ndb_model

from userlock.datastore_rpc import Query
from userlock.ndb.direct import ask
from userlock.ndb.model import Model
from userlock.ndb.patches import raw_key_of
from userlock.ndb.policies import WritePolicy
from userlock.ndb.provenance import origin
from userlock.ndb.stub import stamped_message

_AND: Any = query_types.CompositeFilter.Operator.AND
_EQUAL: Any = query_types.PropertyFilter.Operator.EQUAL
_HAS_ANCESTOR: Any = query_types.PropertyFilter.Operator.HAS_ANCESTOR
_NOT_FINISHED: Any = query_types.QueryResultBatch.MoreResultsType.NOT_FINISHED

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Field:
    """A field of a `PackedModel`: an attribute with a JSON value, which is no property of ndb.

    Those of a row that was read are decoded when the first one is asked for.
    """

    def __init__(self, default: Any = None) -> None:
        self._default = default

    def __set_name__(self, owner: Any, name: str) -> None:
        self._name = name
        owner._defaults = {**owner._defaults, name: self._default}

    def __get__(self, row: Any, owner: Any = None) -> Any:
        return self if row is None else row.fields[self._name]


class PackedModel(Model):
    """A model with fields, which are stored together in `data`, a `BlobProperty` of the subclass.

    As a JSON object, and after a newline the bytes of the field that `_payload` names,
    unless that is None.
    """

    _write_policy = WritePolicy.ABSTRACT
    _payload: ClassVar[str]
    #: All fields, with their defaults, which are not stored.
    _defaults: ClassVar[dict[str, Any]] = {}
    data: Any

    def __init__(self, **values: Any) -> None:
        if values.keys() & self._defaults:  # ndb gives none of a row that it reads
            for name, default in self._defaults.items():
                self.__dict__[name] = values.pop(name, default)
        super().__init__(**values)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the values of all fields. Raises ValueError for a malformed row."""
        mine = self.__dict__
        if not mine.keys() >= self._defaults.keys():
            found = self._defaults if self.data is None else self._fields_in(self.data)
            for name, value in found.items():
                mine.setdefault(name, value)
        return {name: mine[name] for name in self._defaults}

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
        """Return all fields of a row and its (raw) properties; None if it is missing.

        Past ndb: for a reader that writes nothing. Errors: of `ask`; ValueError: it is malformed.
        """
        found = ask("lookup", [raw_key_of(key)]).found
        if not found:
            return None
        properties = found[0].entity.properties
        data = properties["data"].blob_value
        return cls._fields_in(data if data[:1] == b"{" else zlib.decompress(data)), properties

    @classmethod
    def all_below(cls, root: Any, name: str, value: str, most: int) -> list[Any] | None:
        """Return the rows of a group by a property, in one RPC past ndb; None if there are more."""
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
        if batch.more_results == _NOT_FINISHED or len(found) > most:
            return None
        messages = (stamped_message(each.entity, (each.version, asked, None)) for each in found)
        return list(map(ndb_model._entity_from_protobuf, messages))

    def before_put(self) -> None:
        """Change fields before the put."""

    def _prepare_for_put(self) -> None:
        self.before_put()
        fields, default = self.fields, self._defaults
        payload = fields.pop(self._payload)
        changed = {name: fields[name] for name in fields if fields[name] != default[name]}
        data = _encode(changed).encode()
        self.data = data if payload is None else b"%b\n%b" % (data, payload)
        super()._prepare_for_put()
