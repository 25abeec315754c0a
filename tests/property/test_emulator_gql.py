"""Queries written as GQL have the same results as messages."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.property.emulator_cases import any_values, queries, relaxed, to_message
from tests.property.naive_datastore import KEY, NaiveFilter, NaiveQuery, Path
from tests.unit.emulator.builders import PROJECT, key, value
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.errors import DatastoreError
from userlock_emulator.datastore.gql import parse_query
from userlock_emulator.datastore.protos import GqlQuery, Message, Query

PARTITION = Partition(PROJECT, "", "")
WORDS = {"in": "IN", "not in": "NOT IN"}


def written(query: NaiveQuery, bindings: list[Any] | None) -> str:
    """Return a query as text. Its operands go to `bindings`, or into the text."""
    text = "SELECT *"
    if query.kind is not None:
        text += f" FROM {query.kind}"
    parts = []
    for alternative in query.alternatives:
        conditions = [
            f"{item.name} {WORDS.get(item.op, item.op)} {operand(item, bindings)}"
            for item in alternative
        ]
        if query.ancestor is not None:
            conditions.append(f"{KEY} HAS ANCESTOR {one(KEY, query.ancestor, bindings)}")
        parts.append(" AND ".join(conditions))
    if all(parts):
        text += " WHERE " + " OR ".join(parts)
    if query.orders:
        orders = (f"{name} {'DESC' if descending else 'ASC'}" for name, descending in query.orders)
        text += " ORDER BY " + ", ".join(orders)
    return text


def operand(item: NaiveFilter, bindings: list[Any] | None) -> str:
    if item.op not in WORDS:
        return one(item.name, item.operand, bindings)
    return f"ARRAY({', '.join(one(item.name, each, bindings) for each in item.operand)})"


def one(name: str, plain: Any, bindings: list[Any] | None) -> str:
    if bindings is not None:
        bindings.append(key(*plain) if name == KEY else plain)
        return f"@{len(bindings)}"
    return path_literal(plain) if name == KEY else literal(plain)


def path_literal(path: Path) -> str:
    elements = (f'"{item}"' if i % 2 and isinstance(item, str) else str(item)
                for i, item in enumerate(path))  # fmt: skip
    return f"KEY({', '.join(elements)})"


def literal(plain: Any) -> str:
    if plain is None or isinstance(plain, bool):
        return str(plain).replace("None", "NULL").upper()
    if isinstance(plain, str):
        return "'" + plain.replace("\\", "\\\\").replace("'", "''") + "'"
    return repr(plain)


def flat(message: Message) -> Message:
    """Return the message without composite filters of one filter, which GQL cannot express."""
    if message.WhichOneof("filter_type") == "composite_filter":
        parts = [flat(part) for part in message.composite_filter.filters]
        if len(parts) == 1:
            return parts[0]
        del message.composite_filter.filters[:]
        message.composite_filter.filters.extend(parts)
    return message


def same_query(query: NaiveQuery) -> Message:
    expected = Query()
    expected.CopyFrom(to_message(query))
    if expected.HasField("filter"):
        expected.filter.CopyFrom(flat(expected.filter))
    return expected


@relaxed
@given(queries, st.booleans())
def test_a_written_query(query: NaiveQuery, literals: bool) -> None:
    """As text with bindings, or with literals, which there are for finite numbers only."""
    bindings: list[Any] | None = [] if not literals or re.search("nan|inf", repr(query)) else None
    gql = GqlQuery(query_string=written(query, bindings), allow_literals=bindings is None)
    for bound in bindings or ():
        gql.positional_bindings.add().value.CopyFrom(value(bound))
    assert parse_query(gql, PARTITION).SerializeToString() == same_query(query).SerializeToString()


@relaxed
@given(any_values.filter(lambda plain: repr(plain) not in ("nan", "inf", "-inf")))
def test_any_literal(plain: Any) -> None:
    text = "SELECT * WHERE a = " + literal(plain)
    parsed = parse_query(GqlQuery(query_string=text, allow_literals=True), PARTITION)
    assert parsed.filter.property_filter.value == value(plain)


@relaxed
@given(st.text(st.sampled_from("SELECT *FROMabc@1'\"`()=<>,.+-\\ AND OR"), max_size=40))
def test_any_other_text_is_refused_and_no_more(text: str) -> None:
    with suppress(DatastoreError):
        parse_query(GqlQuery(query_string="SELECT " + text, allow_literals=True), PARTITION)
