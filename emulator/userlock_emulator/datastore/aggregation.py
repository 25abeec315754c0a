"""Aggregations over a query's results: count, sum and average.

Semantics as in the comments of query.proto and the service's page "Aggregation queries". Only
numbers count towards sums and averages, and times as their microseconds. An empty sum is the
integer 0, an empty average null. A sum of integers that leaves the 64-bit range
becomes a double, and so does any sum with a double in it.

The service reads one index, whose last properties are the summed and averaged ones: the query
projects them. So an entity without one of them is in no aggregation of the query, a count included
("Calculate multiple aggregations" on that page; Firestore's clients test it: "documents with all
aggregated fields"), and one with an array once for each value in it (google-cloud-php tests it). A
limit or an offset takes the entries in their order.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.encoding import decode_number
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.protos import (
    Message,
    QueryResultBatch,
    Value,
    ValuePb,
    timestamp,
)
from userlock_emulator.datastore.query_batch import BatchBuilder
from userlock_emulator.datastore.transactions import QueryRange

MAX_AGGREGATIONS = 5
_INT64 = range(-(2**63), 2**63)


class _Total(NamedTuple):
    """The sum of a property's numbers in the results, and how many results have one."""

    total: int | float
    numbers: int


@dataclass(frozen=True)
class _Aggregation:
    """One aggregation. `up_to` bounds a count."""

    operator: str
    name: str = ""
    up_to: int | None = None

    def result(self, count: int, totals: Mapping[str, _Total]) -> ValuePb:
        if self.operator == "count":
            return Value(integer_value=count if self.up_to is None else min(count, self.up_to))
        total, numbers = totals[self.name]
        if self.operator == "avg":
            return Value(double_value=float(total) / numbers) if numbers else Value(null_value=0)
        if isinstance(total, int):
            return Value(integer_value=total)
        return Value(double_value=total)


def aggregate(builder: BatchBuilder, request: Message, batch: Message) -> QueryRange:
    """Run an AggregationQuery and fill an AggregationResultBatch.

    Args:
        builder: of the nested query.

    Returns the range of the nested query that the result depends on.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    aggregations = _parse(request)
    found = list(builder.tally(_enough(aggregations)))
    names = dict.fromkeys(aggregated_properties(request))
    totals = {name: _total(found, column) for column, name in enumerate(names)}
    count = sum(times for _, times in found)
    properties = batch.aggregation_results.add().aggregate_properties
    for alias, aggregation in aggregations.items():
        properties[alias].CopyFrom(aggregation.result(count, totals))
    batch.more_results = QueryResultBatch.NO_MORE_RESULTS
    batch.read_time.CopyFrom(timestamp(builder.time))
    return builder.whole_range()


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
        raise invalid("Aggregations can not be empty.")
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
        validation.check_name("property.name", alias, allow_reserved=False)
        if alias in parsed:
            raise invalid(f"Aggregation aliases contain duplicate alias: {alias}.")
        parsed[alias] = _parse_one(aggregation)
    return parsed


def _parse_one(aggregation: Message) -> _Aggregation:
    operator = aggregation.WhichOneof("operator")
    if operator is None:
        raise invalid("Operator field in Aggregation is not set.")
    if operator == "count":
        if not aggregation.count.HasField("up_to"):
            return _Aggregation("count")
        if aggregation.count.up_to.value < 0:
            raise invalid(
                "The `up_to` value in a COUNT aggregation must be greater than or equal to zero."
            )
        return _Aggregation("count", up_to=aggregation.count.up_to.value)
    name = getattr(aggregation, operator).property.name
    validation.check_name("property.name", name, allow_reserved=True)
    if validation.is_reserved(name):
        raise invalid(f"Aggregations are not supported for the property: {name}")
    return _Aggregation(operator, name)


def _total(found: Iterable[tuple[tuple[bytes, ...], int]], column: int) -> _Total:
    integers = numbers = 0
    doubles: list[float] = []
    for values, times in found:
        number = decode_number(values[column])
        if number is None:
            continue
        numbers += times
        if isinstance(number, int):
            integers += number * times
        else:
            doubles.append(number * times)
    return _Total(_added(integers, doubles), numbers)


def _added(integers: int, doubles: list[float]) -> int | float:
    if not doubles:
        return integers if integers in _INT64 else float(integers)
    infinities = {number for number in doubles if math.isinf(number)}
    if any(math.isnan(number) for number in doubles) or len(infinities) == 2:
        return math.nan
    if infinities:
        return infinities.pop()
    return sum(doubles, float(integers))
