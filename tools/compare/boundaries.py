"""The limits of requests as a table: each rule in every place that it holds for.

A row names a rule, what breaks it or just keeps it, and the service's words for the refusal; "" for
what it takes. `boundaries` makes a request of each row and place. `tests/unit/emulator` runs them
on this emulator, `make compare-emulators` on Google's too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import ParseDict

from userlock_emulator.datastore import protos
from userlock_emulator.datastore.protos import Message

Json = dict[str, Any]


@dataclass(frozen=True)
class Boundary:
    """A request at a limit.

    Attributes:
        rule: what it is about.
        place: where in the request.
        rpc, request: the RPC and its message.
        said: a part of the error's text; "" if the request is allowed.
        code: the name of the status.
    """

    rule: str
    place: str
    rpc: str
    request: Message
    said: str
    code: str


def boundaries(project: str) -> Iterator[Boundary]:
    """Yield all rows in all their places. None depends on what another has stored."""
    for rule, place, rpc, body, said in (*_of_values(), *_of_keys(), *_of_names(), *_requests()):
        message = getattr(protos, f"{rpc}Request")()
        request = ParseDict({"projectId": project, **body}, message)
        code = "OK"
        if said:
            code = "FAILED_PRECONDITION" if said == _STALE else "INVALID_ARGUMENT"
        yield Boundary(rule, place, rpc, request, said, code)


_Row = tuple[str, str, str, Json, str]
_KEY: Json = {"path": [{"kind": "A", "name": "x"}]}
_ONE: Json = {"integerValue": 1}
_TEXT: Json = {"stringValue": "x"}
_STALE = "does not match the required base version"


def _commit(**mutation: Any) -> Json:
    return {"mode": "NON_TRANSACTIONAL", "mutations": [mutation]}


def _put(*, to: Json | None = None, **properties: Json) -> Json:
    return _commit(upsert={"key": to or _KEY, "properties": properties})


def _array(*values: Json) -> Json:
    return {"arrayValue": {"values": list(values)}}


def _entity(**properties: Json) -> Json:
    return {"entityValue": {"properties": properties}}


def _unindexed(value: Json) -> Json:
    return {**value, "excludeFromIndexes": True}


def _meaning(number: int, value: Json) -> Json:
    return {**value, "meaning": number}


def _query(**query: Any) -> Json:
    return {"query": {"kind": [{"name": "A"}], **query}}


def _filter(value: Json, op: str | int = "EQUAL", name: str = "a") -> Json:
    return {"propertyFilter": {"property": {"name": name}, "op": op, "value": value}}


def _all(*filters: Json, op: str | int = "AND") -> Json:
    return {"compositeFilter": {"op": op, "filters": list(filters)}}


def _named(*names: str) -> list[Json]:
    return [{"property": {"name": name}} for name in names]


def _gql(text: str, *bound: Json, **more: Any) -> Json:
    bindings = [{"value": value} for value in bound]
    query = {"queryString": text, "allowLiterals": True, "positionalBindings": bindings, **more}
    return {"gqlQuery": query}


def _aggregation(*aggregations: Json, **nested: Any) -> Json:
    return {"aggregationQuery": {"nestedQuery": _query(**nested)["query"],
                                 "aggregations": list(aggregations)}}  # fmt: skip


def _transform(**transform: Any) -> Json:
    changed = {"key": _KEY, "properties": {}}
    return _commit(upsert=changed, propertyTransforms=[{"property": "a", **transform}])


# --- values ---------------------------------------------------------------------------------------

_Place = Callable[[Any], tuple[str, Json]]
_STORED: dict[str, _Place] = {
    "property": lambda v: ("Commit", _put(a=v)),
    "element": lambda v: ("Commit", _put(a=_array(v))),
    "embedded": lambda v: ("Commit", _put(e=_entity(a=v))),
    "in an excluded entity": lambda v: ("Commit", _put(e=_unindexed(_entity(a=v)))),
    "element of an embedded array": lambda v: ("Commit", _put(e=_entity(a=_array(v)))),
    "embedded in an element": lambda v: ("Commit", _put(e=_array(_entity(a=v)))),
}
_OPERANDS: dict[str, _Place] = {
    "filter": lambda v: ("RunQuery", _query(filter=_filter(v))),
    "inequality": lambda v: ("RunQuery", _query(filter=_filter(v, "GREATER_THAN"))),
    "element of IN": lambda v: ("RunQuery", _query(filter=_filter(_array(v), "IN"))),
    "part of AND": lambda v: ("RunQuery", _query(filter=_all(_filter(_ONE, name="b"), _filter(v)))),
    "GQL binding": lambda v: ("RunQuery", _gql("SELECT * FROM A WHERE a = @1", v)),
    "counted": lambda v: ("RunAggregationQuery", _aggregation({"count": {}}, filter=_filter(v))),
}

_LONG = {"stringValue": "s" * 1501}
_BLOB = {"blobValue": "YWJj" * 501}
_POINT = {"geoPointValue": {"latitude": 1.0, "longitude": 2.0}}
_TOO_LONG = "is longer than 1500 bytes."
_NOT_INDEXED = "a filter value must be indexed"
_NO_LIST, _NO_ENTITY = "A list value is not allowed", "An entity value is not allowed"
_LIST_MEANING = "A Value containing a list_value cannot specify a meaning."
_IN_RANGE = "must be stored as a timestamp value."
_NOT_A_PERCENT = "Percent value outside permitted range [0, 100]."
_URL_LENGTH = "The Url value is longer than 2083 bytes."
_NO_PROJECTED = "Projection property cannot be used."

_NUMBERS = [_meaning(31, {"arrayValue": {"values": [{"doubleValue": 1.0}]}})]
_USER = _entity(email=_unindexed(_TEXT), auth_domain=_unindexed(_TEXT))

#: Rule, value, what is said of it as a value that is stored, and as an operand; None: not tried.
_VALUES: list[tuple[str, Json, str | None, str | None]] = [
    ("text of 1500 bytes", {"stringValue": "s" * 1500}, "", ""),
    ("text of 1501 bytes", _LONG, _TOO_LONG, _TOO_LONG),
    ("text of 1501 bytes, excluded", _unindexed(_LONG), "", _NOT_INDEXED),
    ("blob of 1503 bytes", _BLOB, _TOO_LONG, _TOO_LONG),
    ("blob of 1503 bytes, excluded", _unindexed(_BLOB), "", _NOT_INDEXED),
    ("number, excluded", _unindexed(_ONE), "", _NOT_INDEXED),
    ("no value", {}, "does not contain a value.", "does not contain a value."),
    ("no value, excluded", _unindexed({}), "does not contain a value.", None),
    ("array, excluded", _unindexed(_array(_ONE)), "Exclude from indexes cannot be set on a list",
     _NOT_INDEXED),
    ("empty array, excluded", _unindexed(_array()), "Exclude from indexes cannot be set on a list",
     _NOT_INDEXED),
    ("array with a meaning", _meaning(9, _array(_ONE)), _LIST_MEANING, None),
    ("array", _array(_ONE), "", _NO_LIST),
    ("array of excluded and other values", _array(_unindexed(_ONE), _TEXT), "", None),
    ("array in an array", _array(_array(_ONE)), "list_value cannot contain a Value containing",
     None),
    ("entity", _entity(x=_ONE), "", _NO_ENTITY),
    ("entity, excluded", _unindexed(_entity(x=_ONE)), "", _NOT_INDEXED),
    ("entity with a reserved name", _entity(__x__=_ONE), 'name "__x__" is reserved.', None),
    ("vector", _unindexed(_NUMBERS[0]), "", None),
    ("vector that is indexed", _NUMBERS[0], "Vector's must be excluded from indexes.", None),
    ("vector of integers", _unindexed(_meaning(31, _array(_ONE))), "only contain values of type",
     None),
    ("vector of nothing", _unindexed(_meaning(31, _array())), "zero length vector", None),
    ("latitude 90", {"geoPointValue": {"latitude": 90}}, "", ""),
    ("latitude 91", {"geoPointValue": {"latitude": 91}}, "latitude outside permitted range",
     "latitude outside permitted range"),
    ("longitude 181", {"geoPointValue": {"longitude": 181}}, "longitude outside permitted range",
     "longitude outside permitted range"),
    ("latitude NaN", {"geoPointValue": {"latitude": "NaN"}}, "latitude is not a number.",
     "latitude is not a number."),
    ("nanoseconds", {"timestampValue": "2020-01-01T00:00:00.123456789Z"}, "", ""),
    *(
        (f"meaning {number} of a text", _meaning(number, _TEXT), "", "")
        for number in (1, 2, 3, 4, 5, 6, 8, 10, 11, 12, 17)
    ),
    *(
        (f"meaning {number} of a number", _meaning(number, _ONE), f"has a meaning {number} which",
         f"has a meaning {number} which")
        for number in (1, 2, 8, 15, 16, 17, 20, 22, 23)
    ),
    *(
        (f"meaning {number}", _meaning(number, _TEXT), "value meaning", "value meaning")
        for number in (9, 14, 21, 24, 25, 99, -1)
    ),
    ("meaning 2, 2083 bytes", _meaning(2, {"stringValue": "u" * 2083}), "", _TOO_LONG),
    ("meaning 2, 2084 bytes", _meaning(2, {"stringValue": "u" * 2084}), _URL_LENGTH, _URL_LENGTH),
    ("meaning 7 in the range of dates", _meaning(7, _ONE), _IN_RANGE, _IN_RANGE),
    ("meaning 7, the last such date", _meaning(7, {"integerValue": "253402300799999999"}),
     _IN_RANGE, _IN_RANGE),
    ("meaning 7 after all dates", _meaning(7, {"integerValue": "253402300800000000"}), "", ""),
    ("meaning 7 of a text", _meaning(7, _TEXT), "has a meaning 7 which", "has a meaning 7 which"),
    ("meaning 13, 100", _meaning(13, {"integerValue": 100}), "", ""),
    ("meaning 13, 101", _meaning(13, {"integerValue": 101}), _NOT_A_PERCENT, _NOT_A_PERCENT),
    ("meaning 13, -1", _meaning(13, {"integerValue": -1}), _NOT_A_PERCENT, _NOT_A_PERCENT),
    ("meaning 15, indexed", _meaning(15, _TEXT), "Indexed value has meaning 15.",
     "Indexed value has meaning 15."),
    ("meaning 15, excluded", _unindexed(_meaning(15, _TEXT)), "", _NOT_INDEXED),
    ("meaning 16", _meaning(16, {"blobValue": "YWJj"}), "", ""),
    ("meaning 18", _meaning(18, _ONE), _NO_PROJECTED, ""),
    ("meaning 18 of a date", _meaning(18, {"timestampValue": "2020-01-01T00:00:00Z"}),
     "has a meaning 18 which", "has a meaning 18 which"),
    ("meaning 20", _meaning(20, _USER), "", None),
    ("meaning 20 of another entity", _meaning(20, _entity(x=_ONE)), '"x" is not allowed.', None),
    ("meaning 20 without an address", _meaning(20, _entity(email=_unindexed(_TEXT))),
     'missing required property "auth_domain".', None),
    ("meaning 22, indexed", _meaning(22, {"blobValue": "YWJj"}), "Indexed value has meaning 22.",
     "Indexed value has meaning 22."),
    ("meaning 22, excluded", _unindexed(_meaning(22, {"blobValue": "YWJj"})), "", _NOT_INDEXED),
    ("meaning 31 of a number", _unindexed(_meaning(31, _ONE)), "meaning 31", None),
]  # fmt: skip


def _of_values() -> Iterator[_Row]:
    for rule, value, stored, compared in _VALUES:
        for said, places in ((stored, _STORED), (compared, _OPERANDS)):
            for place, make in places.items() if said is not None else ():
                # An array is no element, whatever else is wrong with it.
                inner = "arrayValue" in value and place.startswith("element")
                rpc, body = make(value)
                if inner and said != _NOT_INDEXED:
                    if places is _STORED and (said or value["arrayValue"]["values"]):
                        yield rule, place, rpc, body, "list_value cannot contain a Value containing"
                elif not (inner and places is _OPERANDS):
                    yield rule, place, rpc, body, said or ""


# --- keys -----------------------------------------------------------------------------------------


def _path(*elements: Json) -> Json:
    return {"path": list(elements)}


def _in(namespace: str) -> Json:
    return {"partitionId": {"namespaceId": namespace}, **_path({"kind": "B", "id": 1})}


def _with_key(make: _Place, value: Callable[[Json], Json]) -> _Place:
    """Return a place of keys: in a value, in a place of values."""
    return lambda key: make(value(key))


_FRESH: dict[str, _Place] = {
    "upsert": lambda k: ("Commit", _commit(upsert={"key": k})),
}
_WRITES: dict[str, _Place] = {
    "delete": lambda k: ("Commit", _commit(delete=k)),
    "reserve": lambda k: ("ReserveIds", {"keys": [k]}),
}
_EMBEDDED: dict[str, _Place] = {
    f"key of an entity: {place}": _with_key(make, lambda k: {"entityValue": {"key": k}})
    for place, make in _STORED.items()
}
_READS: dict[str, _Place] = {
    "lookup": lambda k: ("Lookup", {"keys": [k]}),
    "__key__": lambda k: ("RunQuery", _query(filter=_filter({"keyValue": k}, name="__key__"))),
    "__key__ >": lambda k: (
        "RunQuery", _query(filter=_filter({"keyValue": k}, "GREATER_THAN", "__key__"))
    ),
    "__key__ IN": lambda k: (
        "RunQuery", _query(filter=_filter(_array({"keyValue": k}), "IN", "__key__"))
    ),
    "ancestor": lambda k: (
        "RunQuery", _query(filter=_filter({"keyValue": k}, "HAS_ANCESTOR", "__key__"))
    ),
}  # fmt: skip
_AS_VALUES: dict[str, _Place] = {
    f"key value: {place}": _with_key(make, lambda k: {"keyValue": k})
    for place, make in (_STORED | _OPERANDS).items()
}

_INCOMPLETE = "Key path element must not be incomplete: ["
_WRONG_KEYS: list[tuple[str, Json, str]] = [
    ("empty path", {}, "Key path is empty."),
    ("id 0", _path({"kind": "B", "id": 0}), "Key path id is invalid. Must not be zero."),
    ("empty name", _path({"kind": "B", "name": ""}), "The key path element name is the empty"),
    ("empty kind", _path({"kind": "", "id": 1}), "The kind is the empty string."),
    ("name of 1501 bytes", _path({"kind": "B", "name": "x" * 1501}), "element name is longer"),
    ("kind of 1501 bytes", _path({"kind": "B" * 1501, "id": 1}), "The kind is longer than 1500"),
    ("101 elements", _path(*[{"kind": "B", "id": 1}] * 101), "Key path is too long. Cannot exceed"),
    ("incomplete ancestor", _path({"kind": "B"}, {"kind": "B", "id": 1}), _INCOMPLETE),
    ("namespace with a space", _in("n n"), 'Illegal string "n n" in namespace id.'),
    ("namespace of 101 characters", _in("n" * 101), "in namespace id."),
]


def _of_keys() -> Iterator[_Row]:
    everywhere = _FRESH | _WRITES | _EMBEDDED | _READS | _AS_VALUES
    for rule, key, said in _WRONG_KEYS:
        yield from _everywhere(rule, everywhere, key, said)
    fine = _path({"kind": "B", "name": "x" * 1500})
    yield from _everywhere("name of 1500 bytes", everywhere, fine, "")
    incomplete = _path({"kind": "B"})
    yield from _everywhere("incomplete", _WRITES | _READS | _AS_VALUES, incomplete, _INCOMPLETE)
    yield from _everywhere("incomplete", _FRESH | _EMBEDDED, incomplete, "")
    for rule, key, said in (
        ("reserved kind", _path({"kind": "__B__", "id": 1}), 'The kind "__B__" is reserved.'),
        ("reserved name", _path({"kind": "B", "name": "__x__"}), 'name "__x__" is reserved.'),
        ("reserved namespace", _in("__n__"), 'The namespace id "__n__" is reserved.'),
    ):
        yield from _everywhere(rule, _FRESH | _WRITES, key, said)
        elsewhere = _EMBEDDED | {"lookup": _READS["lookup"]}
        stored = {place: make for place, make in _AS_VALUES.items() if make(key)[0] == "Commit"}
        yield from _everywhere(rule, elsewhere | stored, key, "")
    namespaces = (("__n__", 'The namespace id "__n__" is reserved.'), ("n n", "Illegal string"))
    for namespace, said in namespaces:
        key = {"partitionId": {"namespaceId": namespace}, **incomplete}
        yield "namespace", "allocate", "AllocateIds", {"keys": [key]}, said
    yield "complete", "allocate", "AllocateIds", {"keys": [_KEY]}, "must not be complete: [A: x]"
    foreign = {"partitionId": {"projectId": "other"}, **_path({"kind": "B", "id": 1})}
    for place in ("upsert", "delete", "lookup"):
        rpc, body = everywhere[place](foreign)
        yield "another project", place, rpc, body, "mismatched databases within request"
    yield "another project", "value", *_STORED["property"]({"keyValue": foreign}), ""


def _everywhere(rule: str, places: dict[str, _Place], broken: Any, said: str) -> Iterator[_Row]:
    for place, make in places.items():
        yield rule, place, *make(broken), said


# --- names ----------------------------------------------------------------------------------------

_NAMED: dict[str, _Place] = {
    "property": lambda n: ("Commit", _put(**{n: _ONE})),
    "embedded property": lambda n: ("Commit", _put(e=_entity(**{n: _ONE}))),
    "in an array": lambda n: ("Commit", _put(e=_array(_entity(**{n: _ONE})))),
}
_QUERIED: dict[str, _Place] = {
    "filter": lambda n: ("RunQuery", _query(filter=_filter(_ONE, name=n))),
    "order": lambda n: ("RunQuery", _query(order=_named(n))),
}
_SHOWN: dict[str, _Place] = {
    "projection": lambda n: ("RunQuery", _query(projection=_named(n))),
    "distinct": lambda n: ("RunQuery", _query(projection=_named(n), distinctOn=[{"name": n}])),
    "sum": lambda n: ("RunAggregationQuery", _aggregation({"sum": {"property": {"name": n}}})),
}
_MASKED: dict[str, _Place] = {
    "mask of a lookup": lambda n: ("Lookup", {"keys": [_KEY], "propertyMask": {"paths": [n]}}),
    "mask of a query": lambda n: ("RunQuery", {**_query(), "propertyMask": {"paths": [n]}}),
}
_CHANGED: dict[str, _Place] = {
    "mask of a commit": lambda n: (
        "Commit", _commit(upsert={"key": _KEY}, propertyMask={"paths": [n]})
    ),
    "transform": lambda n: ("Commit", _transform(property=n, increment=_ONE)),
}  # fmt: skip


def _of_names() -> Iterator[_Row]:
    queries = _QUERIED | _SHOWN
    paths = _MASKED | _CHANGED
    yield from _everywhere("empty name", _NAMED | queries, "", "The property.name is the empty")
    yield from _everywhere("empty name", paths, "", "empty")
    yield from _everywhere("name of 1501 bytes", _NAMED | queries | paths, "x" * 1501, "longer")
    yield from _everywhere("name of 1498 bytes", _NAMED | queries, "x" * 1498, "")
    inner = {place: make for place, make in _NAMED.items() if place != "property"}
    yield from _everywhere("1501 bytes with the outer name", inner, "x" * 1499, "flattened")
    yield from _everywhere("reserved name", _NAMED | _CHANGED, "__x__", "reserved.")
    yield from _everywhere("reserved name", _QUERIED, "__x__", "")
    yield from _everywhere("reserved name", _SHOWN, "__x__", "not supported for the property")
    for malformed in ("a..b", ".a", "a.", "a\\"):
        yield from _everywhere("malformed path", paths, malformed, "property path")
    for kind, said in (("", "The kind is the empty string."), ("x" * 1501, "The kind is longer")):
        yield "kind", "query", "RunQuery", {"query": {"kind": [{"name": kind}]}}, said
    for namespace, said in (("a b", 'Illegal string "a b" in namespace id.'), ("__n__", "")):
        body = {**_query(), "partitionId": {"namespaceId": namespace}}
        yield "namespace", "query", "RunQuery", body, said
    for alias, said in (("__x__", "is reserved."), ("x" * 1501, "is longer"), ("x", "")):
        body = _aggregation({"count": {}, "alias": alias})
        yield "name", "alias", "RunAggregationQuery", body, said
    yield "project", "request", "Lookup", {"projectId": "a b", "keys": [_KEY]}, "is an invalid"
    yield "database", "request", "Lookup", {"databaseId": "(default)", "keys": [_KEY]}, "default"


# --- requests -------------------------------------------------------------------------------------

_BINDING = "SELECT * FROM A WHERE a = @1"
_LETTERS = [f"p{number}" for number in range(101)]


def _of_queries() -> Iterator[tuple[str, Json, str]]:
    ancestor = _filter({"keyValue": _KEY}, "HAS_ANCESTOR", "__key__")
    other = _filter({"keyValue": _path({"kind": "B", "id": 1})}, "HAS_ANCESTOR", "__key__")
    key, text = _named("__key__"), _named("s")
    numbers = [{"integerValue": number} for number in range(31)]
    yield "empty filter", _query(filter={}), "a filter must have exactly one of its fields set"
    yield "empty part", _query(filter=_all(_filter(_ONE), {})), "a filter must have exactly one"
    yield "no parts", _query(filter=_all()), "A composite filter must have at least one sub-filter."
    yield "no operator", _query(filter=_all(_filter(_ONE), op=0)), "must specify an operator"
    yield "unknown operator of filters", _query(filter=_all(_filter(_ONE), op=9)), "operator"
    yield "no comparison", _query(filter=_filter(_ONE, 0)), "must specify an operator"
    yield "unknown comparison", _query(filter=_filter(_ONE, 77)), "operator"
    yield "IN without an array", _query(filter=_filter(_ONE, "IN")), "requires an"
    yield "IN of nothing", _query(filter=_filter(_array(), "IN")), "requires an"
    yield "IN, excluded", _query(filter=_filter(_unindexed(_array(_ONE)), "IN")), _NOT_INDEXED
    yield "IN with a meaning", _query(filter=_filter(_meaning(9, _array(_ONE)), "IN")), "meaning"
    yield "IN of 31", _query(filter=_filter(_array(*numbers), "IN")), "30"
    yield "NOT_IN of 11", _query(filter=_filter(_array(*numbers[:11]), "NOT_IN")), "10 values"
    unequal = _all(_filter(_ONE, "NOT_EQUAL"), _filter(_ONE, "NOT_EQUAL", "b"))
    yield "two NOT_EQUAL", _query(filter=unequal), "Only a single 'NOT_EQUAL' or 'NOT_IN'"
    yield (
        "ancestor of a property",
        _query(filter=_filter({"keyValue": _KEY}, "HAS_ANCESTOR")),
        ("property must be __key__"),
    )
    yield "ancestor is a number", _query(filter=_filter(_ONE, "HAS_ANCESTOR", "__key__")), "Key"
    yield "key is a number", _query(filter=_filter(_ONE, name="__key__")), "must be a Key"
    yield "two ancestors", _query(filter=_all(ancestor, other)), "common and unique ancestor"
    yield "ancestor, excluded", _query(filter=_filter(
        _unindexed({"keyValue": _KEY}), "HAS_ANCESTOR", "__key__")), _NOT_INDEXED  # fmt: skip
    yield (
        "key, excluded",
        _query(filter=_filter(_unindexed({"keyValue": _KEY}), name="__key__")),
        (_NOT_INDEXED),
    )
    yield "101 orders", _query(order=_named(*_LETTERS)), "more than 100 filters + sort orders"
    yield "unknown direction", _query(order=[{**key[0], "direction": 9}]), "Unrecognized direction"
    yield (
        "unknown direction after the key",
        _query(order=[*key, {**text[0], "direction": 9}]),
        ("Unrecognized direction"),
    )
    yield "order twice", _query(order=_named("a", "a")), "duplicate fields a"
    yield "offset -1", _query(offset=-1), "Offset must be non-negative."
    yield "limit -1", _query(limit=-1), "Limit must be non-negative."
    yield "limit 0", _query(limit=0), ""
    yield "two kinds", _query(kind=[{"name": "A"}, {"name": "B"}]), "multiple kinds not supported"
    yield "projection twice", _query(projection=_named("s", "s")), "project a property multiple"
    yield "key projected twice", _query(projection=key * 2), ""
    yield (
        "projection and equality",
        _query(projection=text, filter=_filter(_TEXT, name="s")),
        ("use projection on a property with an equality filter"),
    )
    yield "distinct twice", _query(projection=text, distinctOn=[{"name": "s"}] * 2), "multiple"
    yield "distinct key", _query(distinctOn=[{"name": "__key__"}]), "not supported for the property"
    yield "distinct after an order", _query(distinctOn=[{"name": "s"}], order=_named("a")), "order"
    yield "mask and keys only", {**_query(projection=key), "propertyMask": {"paths": ["a"]}}, ""
    yield (
        "mask and projection",
        {**_query(projection=text), "propertyMask": {"paths": ["a"]}},
        ("property masks are not allowed on projection queries"),
    )
    yield "junk as a cursor", _query(startCursor="YWJj"), "ursor"
    yield "filter without a kind", {"query": {"filter": _filter(_ONE)}}, "kind is required for"
    yield "order without a kind", {"query": {"order": text}}, "kind is required for"
    yield "no query", {}, "must be set"
    yield "GQL with a semicolon", _gql("SELECT * FROM A;"), "exical error at line 1, column"
    yield "GQL", _gql("SELECT * FROM A WHERE a = 1"), ""
    yield "GQL of nothing", _gql(""), "SELECT"
    yield "GQL with a literal", _gql("SELECT * FROM A WHERE a = 1", allowLiterals=False), "iteral"
    yield "GQL without a binding", _gql(_BINDING), "1"
    yield "GQL with another binding", _gql("SELECT * FROM A", _ONE), "1"
    yield "unknown consistency", {**_query(), "readOptions": {"readConsistency": 9}}, "consistency"
    yield (
        "unknown transaction",
        {**_query(), "readOptions": {"transaction": "YWJj"}},
        ("Invalid transaction."),
    )


def _of_commits() -> Iterator[tuple[str, Json, str]]:
    entity: Json = {"key": _KEY, "properties": {}}
    fresh: Json = {"key": _path({"kind": "A"}), "properties": {}}
    missing = _path({"kind": "A", "name": "never"})
    once = {"mode": "TRANSACTIONAL", "singleUseTransaction": {"readWrite": {}}}
    upsert = {"upsert": entity}
    alone = "cannot set a conflict resolution strategy if no detection strategy was set"
    yield "no operation", _commit(), "Mutation is missing operation."
    yield "no key", _commit(upsert={"properties": {}}), "ey"
    yield "base version -1", _commit(**upsert, baseVersion=-1), "Invalid base_version: -1"
    yield "insert over a version", _commit(insert=entity, baseVersion=1), "Cannot insert an entity"
    yield "update of nothing", _commit(update=entity, baseVersion=0), "Cannot update an entity"
    for name, detection in (("base version", {"baseVersion": 0}),
                            ("update time", {"updateTime": "2020-01-01T00:00:00Z"})):  # fmt: skip
        yield (
            f"{name} of a key without id",
            _commit(insert=fresh, **detection),
            ("conflict detection is not allowed for incomplete keys"),
        )
    nanoseconds = "2020-01-01T00:00:00.000000001Z"
    yield (
        "update time with nanoseconds",
        _commit(update=entity, updateTime=nanoseconds),
        ("timestamp cannot have more than microseconds precision"),
    )
    yield "FAIL alone", _commit(**upsert, conflictResolutionStrategy="FAIL"), alone
    yield (
        "unknown strategy",
        _commit(**upsert, baseVersion=1, conflictResolutionStrategy=9),
        ("Unknown conflict resolution strategy."),
    )
    yield "FAIL, stale", {**once, "mutations": [
        {"upsert": {"key": missing}},
        {"upsert": {"key": _KEY}, "baseVersion": 1, "conflictResolutionStrategy": "FAIL"},
    ]}, _STALE  # fmt: skip
    yield "two base versions", {**once, "mutations": [
        {**upsert, "baseVersion": 1}, {**upsert, "baseVersion": 2}
    ]}, "must have the same base version."  # fmt: skip
    yield (
        "same entity twice",
        {"mode": "NON_TRANSACTIONAL", "mutations": [upsert, upsert]},
        ("may not contain multiple mutations affecting the same entity."),
    )
    yield "unknown mode", {"mode": 9, "mutations": [upsert]}, "unknown commit mode"
    yield "no transaction", {"mutations": [upsert]}, "transactional commit requires a transaction"
    yield (
        "transaction",
        {**_commit(**upsert), "transaction": "YWJj"},
        "cannot specify a transaction",
    )
    yield "empty transaction", {"mode": "TRANSACTIONAL", "transaction": ""}, "ransaction"
    yield "unknown transaction", {"mode": "TRANSACTIONAL", "transaction": "YWJj"}, "Invalid"
    yield (
        "read-only",
        {**once, "singleUseTransaction": {"readOnly": {}}, "mutations": [upsert]},
        ("must be READ_WRITE."),
    )
    retried = {"readWrite": {"previousTransaction": "YWJj"}}
    yield "unknown previous transaction", {**once, "singleUseTransaction": retried}, "Invalid"
    yield "transform of nothing", _transform(), "Operation type must be specified"
    yield "unknown server value", _transform(setToServerValue=9), "ServerValue type must be"
    for name in ("increment", "maximum", "minimum"):
        yield f"{name} of a text", _transform(**{name: _TEXT}), "Input must be int64 or double."
    yield (
        "delete with a transform",
        _commit(delete=_KEY, propertyTransforms=[{"property": "a", "increment": _ONE}]),
        "Delete mutation cannot have PropertyTransforms.",
    )
    deep, deeper = _nested(20), _nested(21)
    yield "20 levels", _put(a=deep), ""
    yield "21 levels", _put(a=deeper), "At most 20 nested"
    yield "22 levels with arrays", _put(a=_nested(11, _array)), "At most 20 nested"
    yield "20 levels with arrays", _put(a=_nested(10, _array)), ""


def _nested(levels: int, around: Callable[[Json], Json] = lambda value: value) -> Json:
    value = _ONE
    for _ in range(levels):
        value = around(_entity(x=value))
    return value


def _of_aggregations() -> Iterator[tuple[str, Json, str]]:
    count: Json = {"count": {}}
    total: Json = {"sum": {"property": {"name": "a"}}}
    twice = [{**count, "alias": "a"}] * 2
    keys = _named("__key__")
    yield "no aggregation", _aggregation(), "Aggregations can not be empty."
    yield "six aggregations", _aggregation(*[count] * 6), "5"
    yield "one alias twice", _aggregation(*twice), "duplicate alias: a."
    yield "no operator", _aggregation({"alias": "a"}), "Operator field in Aggregation is not set."
    yield "up to -1", _aggregation({"count": {"upTo": -1}}), "greater than or equal to zero."
    yield "up to 0", _aggregation({"count": {"upTo": 0}}), ""
    yield "sum of keys", _aggregation({"sum": {"property": {"name": "__key__"}}}), "not supported"
    yield "sum of a keys-only query", _aggregation(total, projection=keys), "only returns keys."
    yield "count of a keys-only query", _aggregation(count, projection=keys), ""
    yield "semicolon", _gql("SELECT COUNT(*) FROM A;"), "exical error at line 1, column"
    yield "nothing", {}, "must be set"


def _of_the_rest() -> Iterator[tuple[str, str, Json, str]]:
    junk = "YWJj"
    retried = {"readWrite": {"previousTransaction": junk}}
    yield "previous transaction", "BeginTransaction", {"transactionOptions": retried}, "Invalid"
    options = {"newTransaction": retried}
    yield "previous transaction", "Lookup", {"keys": [_KEY], "readOptions": options}, "Invalid"
    yield "unknown transaction", "Rollback", {"transaction": junk}, "Invalid transaction."
    yield "no transaction", "Rollback", {}, "transaction required"
    yield (
        "empty transaction",
        "Lookup",
        {"keys": [_KEY], "readOptions": {"transaction": ""}},
        ("a transaction cannot be the empty string."),
    )
    time = {"readTime": "2020-01-01T00:00:00.000000001Z"}
    yield "nanoseconds", "Lookup", {"keys": [_KEY], "readOptions": time}, "microseconds precision"
    yield (
        "consistency",
        "Lookup",
        {"keys": [_KEY], "readOptions": {"readConsistency": 9}},
        ("consistency"),
    )


def _requests() -> Iterator[_Row]:
    for rpc, rows in (
        ("RunQuery", _of_queries()),
        ("Commit", _of_commits()),
        ("RunAggregationQuery", _of_aggregations()),
    ):
        for rule, body, said in rows:
            yield rule, "request", rpc, body, said
    for rule, rpc, body, said in _of_the_rest():
        yield rule, "request", rpc, body, said
