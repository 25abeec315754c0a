"""Aggregations over a query's results: count, sum and average.

Semantics as in the comments of query.proto and the service's page "Aggregation queries". Only
numbers count towards sums and averages, and times as their microseconds. An empty sum is the
integer 0, an empty average null. A sum of integers that leaves the 64-bit range
becomes a double, and so does any sum with a double in it.

The service reads one index, whose last properties are the summed and averaged ones. So an entity
without one of them is in no aggregation of the query, a count included ("Calculate multiple
aggregations" on that page; Firestore's clients test it: "documents with all aggregated fields"). A
limit or an offset takes the entities in the order of these properties.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.indexing import indexed_values
from userlock_emulator.datastore.protos import (
    Entity,
    EntityPb,
    Message,
    QueryResultBatch,
    Value,
    ValuePb,
    microseconds,
    timestamp,
)
from userlock_emulator.datastore.query import KEY, Row
from userlock_emulator.datastore.query_batch import BatchBuilder
from userlock_emulator.datastore.transactions import QueryRange

MAX_AGGREGATIONS = 5
_INT64 = range(-(2**63), 2**63)


@dataclass
class _Aggregation:
    """The state of one aggregation while results stream in."""

    operator: str
    name: str = ""
    up_to: int | None = None
    count: int = 0
    numbers: list[int | float] = field(default_factory=list)

    def add(self, entity: EntityPb | None) -> None:
        self.count += 1
        if entity is None or not self.name:
            return
        value = _find(entity, self.name)
        if value is None or value.exclude_from_indexes:
            return
        which = value.WhichOneof("value_type")
        if which in ("integer_value", "double_value"):
            self.numbers.append(getattr(value, which))
        elif which == "timestamp_value":
            self.numbers.append(microseconds(value.timestamp_value))

    def result(self) -> ValuePb:
        value = Value()
        if self.operator == "count":
            capped = self.count if self.up_to is None else min(self.count, self.up_to)
            value.integer_value = capped
        elif self.operator == "sum":
            total = _total(self.numbers)
            if isinstance(total, int):
                value.integer_value = total
            else:
                value.double_value = total
        elif self.numbers:
            value.double_value = float(_total(self.numbers)) / len(self.numbers)
        else:
            value.null_value = 0
        return value


def aggregate(builder: BatchBuilder, request: Message, batch: Message) -> QueryRange:
    """Run an AggregationQuery and fill an AggregationResultBatch.

    Args:
        builder: of the nested query.

    Returns the range of the nested query that the result depends on.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    aggregations = _parse(request)
    loads = any(aggregation.name for aggregation in aggregations.values())
    enough = _enough(aggregations)
    counted = None if loads else builder.count(enough)
    if counted is not None:
        for aggregation in aggregations.values():
            aggregation.count = counted
    else:
        for entity in itertools.islice(_entities(builder, aggregations), enough):
            for aggregation in aggregations.values():
                aggregation.add(entity)
    properties = batch.aggregation_results.add().aggregate_properties
    for alias, aggregation in aggregations.items():
        properties[alias].CopyFrom(aggregation.result())
    batch.more_results = QueryResultBatch.NO_MORE_RESULTS
    batch.read_time.CopyFrom(timestamp(builder.time))
    return builder.whole_range()


def _entities(
    builder: BatchBuilder, aggregations: dict[str, _Aggregation]
) -> Iterator[EntityPb | None]:
    """Yield the entities that have all aggregated properties; None each if there are none."""
    names = {aggregation.name for aggregation in aggregations.values() if aggregation.name}

    def load(row: Row) -> EntityPb | None:
        entity = Entity.FromString(builder.load(row.key).data)
        return entity if names <= indexed_values(entity).keys() else None

    return builder.results(load) if names else (None for _ in builder.results(lambda row: row))


def aggregated_properties(request: Message) -> list[str]:
    """Return the properties that an AggregationQuery sums or averages."""
    operators = [(each, each.WhichOneof("operator")) for each in request.aggregations]
    return [getattr(each, name).property.name for each, name in operators if name in ("sum", "avg")]


def _enough(aggregations: dict[str, _Aggregation]) -> int | None:
    """Return the number of results after which nothing can change, or None if there is no such
    number.
    """
    bounds = [a.up_to for a in aggregations.values() if a.up_to is not None]
    return max(bounds) if len(bounds) == len(aggregations) else None


def _parse(request: Message) -> dict[str, _Aggregation]:
    if not request.aggregations:
        raise invalid("An aggregation query needs at least one aggregation.")
    if len(request.aggregations) > MAX_AGGREGATIONS:
        raise invalid(
            f"The maximum number of aggregations allowed in an aggregation query is "
            f"{MAX_AGGREGATIONS}. Received: {len(request.aggregations)}"
        )
    parsed: dict[str, _Aggregation] = {}
    unnamed = 0
    for aggregation in request.aggregations:
        alias = aggregation.alias
        if not alias:
            unnamed += 1
            alias = f"property_{unnamed}"
        validation.check_name("aggregation alias", alias, allow_reserved=False)
        if alias in parsed:
            raise invalid(f"Aggregation aliases must be distinct: {alias}")
        parsed[alias] = _parse_one(aggregation)
    return parsed


def _parse_one(aggregation: Message) -> _Aggregation:
    operator = aggregation.WhichOneof("operator")
    if operator is None:
        raise invalid("An aggregation has no operator.")
    if operator == "count":
        if not aggregation.count.HasField("up_to"):
            return _Aggregation("count")
        if aggregation.count.up_to.value < 0:
            raise invalid("up_to must not be negative.")
        return _Aggregation("count", up_to=aggregation.count.up_to.value)
    name = getattr(aggregation, operator).property.name
    if not name:
        raise invalid(f"The {operator} aggregation names no property.")
    if name == KEY:
        raise invalid(f"Aggregations are not supported for the property: {KEY}")
    return _Aggregation(operator, name)


def _total(numbers: list[int | float]) -> int | float:
    integers = sum(number for number in numbers if isinstance(number, int))
    doubles = [number for number in numbers if isinstance(number, float)]
    if not doubles:
        return integers if integers in _INT64 else float(integers)
    infinities = {number for number in doubles if math.isinf(number)}
    if any(math.isnan(number) for number in doubles) or len(infinities) == 2:
        return math.nan
    if infinities:
        return infinities.pop()
    return sum(doubles, float(integers))


def _find(entity: EntityPb, name: str) -> ValuePb | None:
    """Return a property by name, or by dotted path through embedded entities."""
    if name in entity.properties:
        return entity.properties[name]
    head, dot, rest = name.partition(".")
    while dot:
        if head in entity.properties:
            value = entity.properties[head]
            if value.WhichOneof("value_type") != "entity_value" or value.exclude_from_indexes:
                return None
            return _find(value.entity_value, rest)
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return None
