"""Random queries and aggregations."""

from __future__ import annotations

import random
from typing import Any

from tools.compare import messages
from tools.compare.messages import At, Path
from userlock_emulator.datastore.protos import (
    Filter,
    Message,
    Query,
    RunAggregationQueryRequest,
    RunQueryRequest,
)

_COMPARISONS = ["EQUAL", "EQUAL", "LESS_THAN", "LESS_THAN_OR_EQUAL", "GREATER_THAN"]
_OPERANDS: list[Any] = [
    *(None, True, 0, 1, 1, 2, 2, 3, 1.5, "a", "b", b"ab", At(1_700_000_000_123_456))
]
_KEYS: list[Path] = [("K", 2), ("K", "x"), ("P", 1, "K", 2), ("J", 1)]
_KEY = "__key__"
_GQL = [
    "SELECT * FROM K WHERE a = 1",
    "SELECT * FROM K WHERE a > 0 ORDER BY a DESC LIMIT 3",
    "SELECT __key__ FROM K",
    "SELECT a FROM K WHERE a >= 1",
    "SELECT DISTINCT a FROM K",
    "SELECT * FROM K WHERE __key__ HAS ANCESTOR KEY(P, 1)",
    "SELECT * FROM K WHERE a IN ARRAY(1, 2)",
    "SELECT * FROM K WHERE a != 1",
    "SELECT * FROM K LIMIT 2 OFFSET 1",
    "SELECT COUNT(*) FROM K",
    "SELECT FROM K",
]


class Queries:
    """A source of random queries.

    Args:
        chance: the source of randomness.
        project: the project of all keys.
    """

    def __init__(self, chance: random.Random, project: str) -> None:
        self._chance = chance
        self._project = project

    def query(self) -> tuple[Message, frozenset[str]]:
        """Return a request, and its features."""
        request = RunQueryRequest(project_id=self._project)
        request.partition_id.project_id = self._project
        if self._chance.random() < 0.1:
            request.gql_query.query_string = text = self._chance.choice(_GQL)
            request.gql_query.allow_literals = True
            return request, frozenset({"gql", f"gql: {text}"})
        features: set[str] = set()
        request.query.CopyFrom(self._any(features))
        self._shape(request.query, features)
        if self._chance.random() < 0.1:
            request.read_options.read_consistency = request.read_options.EVENTUAL
            features.add("eventual")
        return request, frozenset(features)

    def aggregation(self) -> tuple[Message, frozenset[str]]:
        """Return a request, and its features."""
        request = RunAggregationQueryRequest(project_id=self._project)
        request.partition_id.project_id = self._project
        features: set[str] = set()
        asked = request.aggregation_query
        asked.nested_query.CopyFrom(self._any(features))
        if self._chance.random() < 0.2:
            asked.nested_query.limit.value = self._chance.randint(1, 4)
            features.add("limit")
        for number in range(self._chance.choice([1, 1, 2, 3, 6])):
            self._aggregate(asked.aggregations.add(alias=f"n{number}"), features)
        if len(asked.aggregations) > 1:
            features.add("several aggregations")
        return request, frozenset(features)

    def _aggregate(self, message: Message, features: set[str]) -> None:
        name = self._chance.choice(["count", "count", "count up to", "sum", "avg"])
        features.add(name)
        match name:
            case "count":
                message.count.SetInParent()
            case "count up to":
                message.count.up_to.value = self._chance.randint(1, 4)
            case _:
                getattr(message, name).property.name = self._chance.choice(["a", "a", "b", "c"])

    def _any(self, features: set[str]) -> Message:
        """Return a query with filters and orders."""
        query = Query()
        kindless = self._chance.random() < 0.07
        if kindless:
            features.add("kindless")
        else:
            query.kind.add().name = self._chance.choice(["K", "K", "K", "K", "J", "None"])
        parts: list[Message] = []
        inequality = ""
        for _ in range(self._chance.choice([0, 1, 1, 1, 2])):
            name = _KEY if kindless else self._chance.choice(["a", "a", "b", "c", "d.e", _KEY])
            part, unequal = self._comparison(name, features)
            if unequal and inequality not in ("", name):
                features.add("several inequalities")
            inequality = name if unequal else inequality
            parts.append(part)
        if self._chance.random() < 0.2:
            ancestor = messages.value(("P", 1), self._project)
            parts.append(_compare(_KEY, "HAS_ANCESTOR", ancestor))
            features.add("ancestor")
        _conjunction(query.filter, parts)
        if not parts:
            query.ClearField("filter")
        if len(parts) == 2 and "ancestor" not in features and self._chance.random() < 0.2:
            query.filter.composite_filter.op = query.filter.composite_filter.OR
            features.add("or")
        if not kindless:
            self._orders(query, inequality, features)
        return query

    def _comparison(self, name: str, features: set[str]) -> tuple[Message, bool]:
        """Return a filter, and whether it is an inequality."""
        lists = {"IN": 2, "NOT_IN": 2}
        op = self._chance.choice([*_COMPARISONS, "IN", "NOT_IN", "NOT_EQUAL"])
        if op in ("IN", "NOT_IN", "NOT_EQUAL"):
            features.add(op)
        if name == _KEY:
            features.add("key filter")
        if name == "d.e":
            features.add("embedded")
        choose = _KEYS if name == _KEY else _OPERANDS
        operand = self._chance.sample(choose, lists[op]) if op in lists else None
        plain = operand or self._chance.choice(choose)
        compared = messages.value(plain, self._project)
        return _compare(name, op, compared), op not in ("EQUAL", "IN")

    def _orders(self, query: Message, inequality: str, features: set[str]) -> None:
        names = self._chance.sample(["a", "b", "c", _KEY], self._chance.choice([0, 0, 1, 1, 2]))
        if inequality and names and self._chance.random() < 0.9:
            names = [inequality, *(name for name in names if name != inequality)]
        for name in names:
            order = query.order.add()
            order.property.name = name
            order.direction = self._chance.choice([order.ASCENDING, order.DESCENDING])
            features.add("order")

    def _shape(self, query: Message, features: set[str]) -> None:
        """Add a projection, a limit, an offset."""
        kindless = "kindless" in features
        if self._chance.random() < 0.15:
            query.projection.add().property.name = _KEY
            features.add("keys only")
        elif not kindless and self._chance.random() < 0.2:
            names = self._chance.choice([["a"], ["c"], ["a", "b"], ["a", "c"]])
            for name in names:
                query.projection.add().property.name = name
            features.add("projection")
            if self._chance.random() < 0.4:
                query.distinct_on.add().name = names[0]
                features.add("distinct")
        if self._chance.random() < 0.3:
            query.limit.value = self._chance.randint(0, 5)
            features.add("limit" if query.limit.value else "limit 0")
        if self._chance.random() < 0.15:
            query.offset = self._chance.randint(1, 4)
            features.add("offset")


def _compare(name: str, op: str, operand: Message) -> Message:
    message = Filter()
    message.property_filter.property.name = name
    message.property_filter.op = getattr(message.property_filter, op)
    message.property_filter.value.CopyFrom(operand)
    return message


def _conjunction(message: Message, parts: list[Message]) -> None:
    if len(parts) == 1:
        message.CopyFrom(parts[0])
    else:
        message.composite_filter.op = message.composite_filter.AND
        message.composite_filter.filters.extend(parts)
