"""Queries by form or in GQL, as documents: results, the indexes in use, or the error.

A query runs outside transactions and reads the present. It needs no composite index here, and adds
none to the index file. Where the emulator refuses queries without their index, the page says so.
"""

from typing import Any

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from userlock_emulator.datastore import gql
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.engine import Engine
from userlock_emulator.datastore.errors import DatastoreError, invalid
from userlock_emulator.datastore.gql_values import date
from userlock_emulator.datastore.protos import (
    CompositeFilter,
    EntityResult,
    GqlQuery,
    Message,
    PropertyFilter,
    PropertyOrder,
    Query,
    QueryPb,
    RunAggregationQueryRequest,
    RunQueryRequest,
    Value,
    ValuePb,
)
from userlock_emulator.datastore.query import KEY
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.datastore.viewer import places
from userlock_emulator.datastore.viewer.places import Fields
from userlock_emulator.datastore.viewer.store import PAGE, Document, Store
from userlock_emulator.port.rpcs import Run

#: The filters that a form has.
FILTERS = (1, 2, 3)
TYPES = ("string", "integer", "double", "boolean", "timestamp", "key", "null")
_MAX_INT_DIGITS = 20
_BOOLEANS = {"true": True, "false": False}


class Querying:
    """The runner of queries.

    Args:
        store: loads the entities found.
        explain: the RPC RunQuery of the emulator, which may refuse a query without its index;
            None if it refuses none.
        aggregate: the RPC RunAggregationQuery of the emulator, likewise.
    """

    def __init__(
        self, storage: Storage, store: Store, explain: Run | None, aggregate: Run | None
    ) -> None:
        # An engine of its own, whose policy needs no index. It never commits.
        self._engine = Engine(storage)
        self._store = store
        self._explain = explain
        self._aggregate = aggregate

    def run(self, fields: Fields, partition: Partition) -> Document:
        """Return the document of a query that the fields describe, by form or as GQL."""
        document: Document = {**partition._asdict()}
        try:
            if "gql" in fields:
                document |= self._run_gql(fields, partition)
            elif "kind" in fields:
                document |= self._run_query(_of_form(fields, partition), fields, partition)
        except DatastoreError as error:
            document["error"] = {"status": error.code.name, "message": error.message}
        except (DecodeError, AssertionError, ValueError) as error:
            message = f"A damaged record is in the way: {error}"
            document["error"] = {"status": "INTERNAL", "message": message}
        return document

    def _run_gql(self, fields: Fields, partition: Partition) -> Document:
        text = fields["gql"].strip()
        if not text:
            return {}
        parsed = GqlQuery(query_string=text, allow_literals=True)
        try:
            query = gql.parse_query(parsed, partition)
        except DatastoreError as error:
            try:
                aggregation = gql.parse_aggregation_query(parsed, partition)
            except DatastoreError as other:
                raise (other if text.upper().startswith("AGGREGATE") else error) from None
            return self._run_aggregation(aggregation, partition)
        return self._run_query(query, fields, partition)

    def _run_aggregation(self, aggregation: Message, partition: Partition) -> Document:
        request = _request(RunAggregationQueryRequest(), partition)
        request.aggregation_query.CopyFrom(aggregation)
        document: Document = {"query": json_format.MessageToDict(aggregation)}
        document |= _plan(self._engine.run_aggregation_query, self._aggregate, request)
        request.ClearField("explain_options")
        batch = self._engine.run_aggregation_query(request).batch
        found = json_format.MessageToDict(batch.aggregation_results[0])
        return document | {"aggregations": found.get("aggregateProperties", {})}

    def _run_query(self, query: QueryPb, fields: Fields, partition: Partition) -> Document:
        request = _request(RunQueryRequest(), partition)
        request.query.CopyFrom(query)
        document: Document = {"query": json_format.MessageToDict(query)}
        document |= _plan(self._engine.run_query, self._explain, request)
        seen = _seen(fields)
        left = query.limit.value - seen if query.HasField("limit") else PAGE + 1
        if seen:
            request.query.offset = 0
            try:
                request.query.start_cursor = places.from_word(fields.get("cursor", ""))
            except ValueError:
                raise invalid("This is not the cursor of a page.") from None
        # One more than a page has tells whether there is another page.
        request.query.limit.value = max(0, min(left, PAGE + 1))
        alone = _loads_entities(query)
        if alone:
            request.query.projection.add().property.name = KEY
        request.ClearField("explain_options")
        batch = self._engine.run_query(request).batch
        results = list(batch.entity_results[:PAGE])
        more = len(batch.entity_results) > PAGE or (
            # A batch of large entities ends early.
            len(results) < min(left, PAGE) and batch.more_results == batch.NOT_FINISHED
        )
        document["resultType"] = EntityResult.ResultType.Name(
            EntityResult.FULL if alone else batch.entity_result_type
        )
        if alone:
            document["entities"] = self._store.load([each.entity.key for each in results])
        else:
            document["entities"] = [_result(each) for each in results]
        document["next"] = None
        if more and results:
            cursor = places.to_word(results[-1].cursor)
            document["next"] = {"cursor": cursor, "seen": seen + len(results)}
        return document


def _request(request: Message, partition: Partition) -> Message:
    request.project_id, request.database_id = partition.project, partition.database
    request.partition_id.project_id = partition.project
    request.partition_id.database_id = partition.database
    request.partition_id.namespace_id = partition.namespace
    request.explain_options.SetInParent()
    return request


def _plan(explain: Run, refusing: Run | None, request: Message) -> Document:
    """Return the indexes that a query uses, and why the emulator would refuse it, if it would."""
    plan = explain(request).explain_metrics.plan_summary
    document: Document = {
        "indexesUsed": [json_format.MessageToDict(index) for index in plan.indexes_used]
    }
    if refusing is not None:
        try:
            refusing(request)
        except DatastoreError as error:
            document["refused"] = error.message
    return document


def _loads_entities(query: QueryPb) -> bool:
    """Return whether a query has whole entities as results that can be loaded one by one."""
    virtual = any(kind.name.startswith("__") for kind in query.kind)
    return not (query.projection or query.distinct_on or virtual)


def _result(result: Message) -> dict[str, Any]:
    entity = json_format.MessageToDict(result.entity)
    return {"key": entity.get("key"), "properties": entity.get("properties", {})}


def _seen(fields: Fields) -> int:
    text = fields.get("seen", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < _MAX_INT_DIGITS):
        raise invalid("This is not a page of results.")
    return min(int(text), 2**31 - 1)


def _of_form(fields: Fields, partition: Partition) -> QueryPb:
    query = Query()
    if fields["kind"]:
        query.kind.add().name = fields["kind"]
    filters = query.filter.composite_filter
    filters.op = CompositeFilter.AND
    if fields.get("ancestor"):
        ancestor = filters.filters.add().property_filter
        ancestor.property.name = KEY
        ancestor.op = PropertyFilter.HAS_ANCESTOR
        ancestor.value.key_value.CopyFrom(places.find(fields["ancestor"], partition))
    for number in FILTERS:
        name = fields.get(f"p{number}", "")
        if not name:
            continue
        condition = filters.filters.add().property_filter
        condition.property.name = name
        operator = fields.get(f"o{number}", "=")
        if operator not in gql.COMPARATORS:
            raise invalid(f"There is no operator {operator[:10]!r}.")
        condition.op = gql.COMPARATORS[operator]
        kind, text = fields.get(f"t{number}", "string"), fields.get(f"v{number}", "")
        condition.value.CopyFrom(_value(kind, text, partition))
    if not filters.filters:
        query.ClearField("filter")
    if fields.get("order"):
        descending = fields.get("direction") == "descending"
        order = query.order.add()
        order.property.name = fields["order"]
        order.direction = PropertyOrder.DESCENDING if descending else PropertyOrder.ASCENDING
    return query


def _value(kind: str, text: str, partition: Partition) -> ValuePb:
    """Return the value that somebody has typed.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    try:
        match kind:
            case "string":
                return Value(string_value=text)
            case "integer":
                return Value(integer_value=int(text[: _MAX_INT_DIGITS + 1]))
            case "double":
                return Value(double_value=float(text))
            case "boolean":
                return Value(boolean_value=_BOOLEANS[text.strip().lower()])
            case "timestamp":
                return date(text.strip())
            case "key":
                return Value(key_value=places.find(text, partition))
            case "null":
                return Value(null_value=0)
    except (ValueError, KeyError):
        raise invalid(f"{text[:100]!r} is not of the type {kind}.") from None
    raise invalid(f"There is no type {kind[:20]!r}.")
