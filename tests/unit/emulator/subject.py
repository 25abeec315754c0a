"""Short ways to call the service, and an engine in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.unit.emulator.builders import PROJECT, value
from userlock_emulator.datastore import protos
from userlock_emulator.datastore.concurrency import Optimistic
from userlock_emulator.datastore.engine import ControlFactory, Engine
from userlock_emulator.datastore.protos import (
    CommitRequest,
    EntityPb,
    Filter,
    KeyPb,
    Message,
    Mutation,
    PropertyFilter,
    PropertyOrder,
    Query,
    QueryPb,
    RunAggregationQueryRequest,
    Value,
)
from userlock_emulator.datastore.storage import Storage
from userlock_emulator.port.status import Code, RpcError

OPERATORS = {
    "=": PropertyFilter.EQUAL,
    "<": PropertyFilter.LESS_THAN,
    "<=": PropertyFilter.LESS_THAN_OR_EQUAL,
    ">": PropertyFilter.GREATER_THAN,
    ">=": PropertyFilter.GREATER_THAN_OR_EQUAL,
    "!=": PropertyFilter.NOT_EQUAL,
    "in": PropertyFilter.IN,
    "not in": PropertyFilter.NOT_IN,
    "ancestor": PropertyFilter.HAS_ANCESTOR,
}


@contextmanager
def refused(text: str | None = None, code: Code = Code.INVALID_ARGUMENT) -> Iterator[None]:
    """Assert that the block ends with an error of this code, and with this text if any."""
    with pytest.raises(RpcError, match=text) as caught:
        yield
    assert caught.value.code is code


def where(*filters: tuple[str, str, Any], any_of: bool = False) -> Message:
    """Return a filter message: all of `filters` (name, operator, value), or any of them."""
    message = Filter()
    composite = message.composite_filter
    composite.op = composite.OR if any_of else composite.AND
    for name, op, operand in filters:
        leaf = composite.filters.add().property_filter
        leaf.property.name, leaf.op = name, OPERATORS[op]
        leaf.value.CopyFrom(operand if isinstance(operand, Value) else value(operand))
    return message


Conditions = tuple[tuple[str, str, Any], ...]


def query(
    kind: str | None = "K",
    filters: Message | Conditions = (),
    orders: tuple[str, ...] = (),
    projection: tuple[str, ...] = (),
    **fields: Any,
) -> QueryPb:
    """Return a query message for all of the filters; a descending order starts with "-"."""
    limit = fields.pop("limit", None)
    message = Query(**fields)
    if limit is not None:
        message.limit.value = limit
    if kind is not None:
        message.kind.add(name=kind)
    if filters != ():
        message.filter.CopyFrom(where(*filters) if isinstance(filters, tuple) else filters)
    for name in orders:
        order = message.order.add()
        order.property.name = name.removeprefix("-")
        order.direction = (
            PropertyOrder.DESCENDING if name.startswith("-") else PropertyOrder.ASCENDING
        )
    for name in projection:
        message.projection.add().property.name = name
    return message


def aggregation(nested: QueryPb, *wanted: tuple[str, Any, str]) -> Message:
    """Return a request for aggregations: operator, property or bound of a count, and alias."""
    message = RunAggregationQueryRequest(project_id=PROJECT)
    message.aggregation_query.nested_query.CopyFrom(nested)
    for operator, operand, alias in wanted:
        added = message.aggregation_query.aggregations.add(alias=alias)
        if operator != "count":
            getattr(added, operator).property.name = operand
        elif operand is None:
            added.count.SetInParent()
        else:
            added.count.up_to.value = operand
    return message


class Caller:
    """The RPCs with requests in short; a subclass has the way to call one."""

    def call(self, rpc: str, request: Message) -> Message:
        raise NotImplementedError

    def ask(self, rpc: str, **fields: Any) -> Message:
        fields = {"project_id": PROJECT, **fields}
        return self.call(rpc, getattr(protos, f"{rpc}Request")(**fields))

    def commit(
        self, *mutations: Message, transaction: bytes = b"", transactional: bool = False
    ) -> Message:
        """Commit, by default without a transaction."""
        request = CommitRequest(project_id=PROJECT, mutations=mutations)
        if transaction:
            request.transaction = transaction
        elif transactional:
            request.single_use_transaction.read_write.SetInParent()
        else:
            request.mode = CommitRequest.NON_TRANSACTIONAL
        return self.call("Commit", request)

    def put(self, *entities: EntityPb) -> Message:
        """Upsert entities, each in a commit of its own; return the last response."""
        response: Message = None
        for item in entities:
            request = CommitRequest(**_database(item.key), mode=CommitRequest.NON_TRANSACTIONAL)
            request.mutations.add().upsert.CopyFrom(item)
            response = self.call("Commit", request)
        return response

    def delete(self, key: KeyPb) -> Message:
        return self.commit(Mutation(delete=key))

    def lookup(self, *keys: KeyPb, **read_options: Any) -> Message:
        return self.ask("Lookup", keys=keys, read_options=_set(read_options))

    def get(self, key: KeyPb, **read_options: Any) -> EntityPb | None:
        options = _set(read_options)
        found = self.ask("Lookup", **_database(key), keys=[key], read_options=options).found
        return found[0].entity if found else None

    def n_of(self, key: KeyPb, **read_options: Any) -> int | None:
        """Return an entity's property n."""
        found = self.get(key, **read_options)
        return None if found is None else found.properties["n"].integer_value

    def run(self, message: QueryPb, *, namespace: str = "", **read_options: Any) -> Message:
        """Return the first batch of a query."""
        place, options = {"namespace_id": namespace}, _set(read_options)
        return self.ask("RunQuery", query=message, partition_id=place, read_options=options).batch

    def identifiers(self, message: QueryPb) -> list[int | str]:
        """Return the last identifiers of a query's results."""
        return [
            result.entity.key.path[-1].name or result.entity.key.path[-1].id
            for result in self.run(message).entity_results
        ]

    def begin(self, *, read_only: bool = False) -> bytes:
        options: Any = {"read_only": {}} if read_only else None
        transaction: bytes = self.ask("BeginTransaction", transaction_options=options).transaction
        return transaction

    def rollback(self, transaction: bytes) -> Message:
        return self.ask("Rollback", transaction=transaction)


def _set(read_options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the options that are not empty, or None: no message."""
    return {name: option for name, option in read_options.items() if option} or None


def _database(key: KeyPb) -> dict[str, str]:
    place = key.partition_id
    return {"project_id": place.project_id or PROJECT, "database_id": place.database_id}


class Subject(Caller):
    def __init__(self, storage: Storage, control: ControlFactory = Optimistic) -> None:
        self.storage = storage
        self.engine = Engine(storage, control)

    @classmethod
    def in_memory(cls, control: ControlFactory = Optimistic) -> Subject:
        return cls(Storage(), control)

    def call(self, rpc: str, request: Message) -> Message:
        return getattr(self.engine, re.sub("(?<!^)(?=[A-Z])", "_", rpc).lower())(request)


@contextmanager
def subject(control: ControlFactory = Optimistic) -> Iterator[Subject]:
    made = Subject.in_memory(control)
    try:
        yield made
    finally:
        made.storage.close()
