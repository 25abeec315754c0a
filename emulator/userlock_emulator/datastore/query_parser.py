"""Parsing of a Query message into a `ParsedQuery`: checks, normal form, implicit orders."""

import itertools
from collections.abc import Iterable

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.encoding import (
    after_descendants,
    encode_key,
    encode_value,
    successor,
)
from userlock_emulator.datastore.errors import invalid, unimplemented
from userlock_emulator.datastore.protos import (
    CompositeFilter,
    Message,
    PropertyFilter,
    PropertyOrder,
    QueryPb,
    ValuePb,
)
from userlock_emulator.datastore.query import KEY, Conjunction, Order, ParsedQuery
from userlock_emulator.datastore.query_limits import MAX_NOT_IN_VALUES, check_filter, has_ancestor
from userlock_emulator.datastore.rows import TOP, Span

# One filter in normal form: (property, None, encoded) for equality, or
# (property, span, None) for a range.
_Atom = tuple[str, Span | None, bytes | None]
_Alternatives = list[tuple[_Atom, ...]]


def parse_query(query: QueryPb, partition: Partition, number: int | None) -> ParsedQuery:
    """Check a query and bring it into normal form.

    Args:
        partition: the partition the query is scoped to.
        number: that partition's number; None if nothing was ever stored in it.

    Raises:
        DatastoreError: INVALID_ARGUMENT for a malformed query, UNIMPLEMENTED for
            features that the emulator does not have.
    """
    if query.HasField("find_nearest"):
        raise unimplemented("nearest neighbour search")
    if len(query.kind) > 1:
        raise invalid("multiple kinds not supported")
    kind = query.kind[0].name if query.kind else None
    if kind is not None:
        validation.check_name("kind", kind, allow_reserved=True)
    if query.offset < 0:
        raise invalid("Offset must be non-negative.")
    if query.HasField("limit") and query.limit.value < 0:
        raise invalid("Limit must be non-negative.")
    for order in query.order:
        _property(order.property)
        if order.direction not in PropertyOrder.Direction.values():
            raise invalid("Unrecognized direction: UNRECOGNIZED")
    check_filter(query)
    disjunction = _disjunction(query, partition)
    keys_only, shown = _projection(query)
    distinct_on = tuple(map(_property, query.distinct_on))
    projection = tuple(dict.fromkeys([*shown, *distinct_on]))
    _check_projection(projection, disjunction)
    _check_distinct(query, distinct_on)
    orders, key_descending = _orders(query, disjunction, projection)
    _check_kindless(kind, disjunction, orders, projection, key_descending)
    return ParsedQuery(
        partition=number,
        kind=kind,
        disjunction=tuple(c for c in disjunction if not c.impossible),
        orders=orders,
        key_descending=key_descending,
        keys_only=keys_only,
        projection=projection,
        distinct_on=distinct_on,
        shown=shown,
        ancestor=query.HasField("filter") and has_ancestor(query.filter),
        implied=frozenset(order.name for order in orders)
        - {order.property.name for order in query.order},
    )


def _check_kindless(
    kind: str | None,
    disjunction: list[Conjunction],
    orders: tuple[Order, ...],
    projection: tuple[str, ...],
    key_descending: bool,
) -> None:
    if kind is not None:
        return
    if orders or projection or any(c.equal or c.spans for c in disjunction):
        raise invalid("kind is required for filter, order or projection on a property")
    if key_descending:
        raise invalid("kind is required for all orders except __key__ ascending")


def _projection(query: QueryPb) -> tuple[bool, tuple[str, ...]]:
    """Return whether results are keys, and otherwise the properties in them."""
    names = [_property(projection.property) for projection in query.projection]
    if not names:
        return False, ()
    if set(names) == {KEY}:
        return True, ()
    if len(set(names)) != len(names):
        raise invalid("cannot project a property multiple times")
    return False, tuple(name for name in names if name != KEY)


def _property(reference: Message) -> str:
    """Return the name of a property in a query."""
    name: str = reference.name
    validation.check_name("property.name", name, allow_reserved=True)
    return name


def _check_projection(projection: tuple[str, ...], disjunction: list[Conjunction]) -> None:
    for name in projection:
        if validation.is_reserved(name):
            raise invalid(f"projections are not supported for the property: {name}")
        if any(name in conjunction.equal for conjunction in disjunction):
            raise invalid("Cannot use projection on a property with an equality filter.")


def _check_distinct(query: QueryPb, names: tuple[str, ...]) -> None:
    if KEY in names:
        raise invalid(f"group by is not supported for the property: {KEY}")
    if len(set(names)) != len(names):
        raise invalid("cannot group by a property multiple times")
    ordered = [order.property.name for order in query.order]
    if ordered and names and not set(ordered[: len(names)]) <= set(names):
        raise invalid("must specify all group by orderings before any non group by orderings")


def _orders(
    query: QueryPb, disjunction: list[Conjunction], projection: tuple[str, ...]
) -> tuple[tuple[Order, ...], bool]:
    """Return explicit orders without the useless ones, then those that filters imply."""
    orders: list[Order] = []
    ordered: set[str] = set()
    for order in query.order:
        name = order.property.name
        descending = order.direction == PropertyOrder.DESCENDING
        if name == KEY:
            # Keys are unique: later orders cannot make a difference.
            return tuple(orders), descending
        if name in ordered:
            raise invalid(f"order by clause cannot contain duplicate fields {name}")
        fixed = len(disjunction) == 1 and name in disjunction[0].equal
        if not fixed:
            orders.append(Order(name, descending))
            ordered.add(name)
    # "If a query has inequality filters and no order on that property, results are ordered by it."
    # With alternatives, only if each one has the filter. Otherwise the order would hide entities
    # without the property.
    common = set.intersection(*(set(c.spans) for c in disjunction)) if disjunction else set()
    orders += [Order(name) for name in sorted(common - ordered)]
    # A projection is answered from an index on its properties, hence in its order.
    ordered |= common
    orders += [Order(name) for name in projection if name not in ordered]
    return tuple(orders), False


def _disjunction(query: QueryPb, partition: Partition) -> list[Conjunction]:
    if not query.HasField("filter"):
        return [Conjunction()]
    alternatives = _alternatives(query.filter, partition)
    return [_conjunction(atoms) for atoms in dict.fromkeys(alternatives)]


def _conjunction(atoms: Iterable[_Atom]) -> Conjunction:
    equal: dict[str, frozenset[bytes]] = {}
    spans: dict[str, Span] = {}
    keys = Span()
    for name, span, value in atoms:
        if name == KEY and span is not None:
            keys = keys.intersect(span)
        elif span is not None:
            spans[name] = span.intersect(spans.get(name, Span()))
        elif value is not None:
            equal[name] = equal.get(name, frozenset()) | {value}
    return Conjunction(equal, spans, keys)


def _alternatives(filter_pb: Message, partition: Partition) -> _Alternatives:
    """Return a filter in disjunctive normal form."""
    which = filter_pb.WhichOneof("filter_type")
    if which == "property_filter":
        return _property_alternatives(filter_pb.property_filter, partition)
    if which is None:
        raise invalid("a filter must have exactly one of its fields set")
    composite = filter_pb.composite_filter
    if not composite.filters:
        raise invalid("A composite filter must have at least one sub-filter.")
    parts = [_alternatives(part, partition) for part in composite.filters]
    if composite.op == CompositeFilter.OR:
        return [atoms for part in parts for atoms in part]
    if composite.op != CompositeFilter.AND:
        raise invalid("a composite filter must specify an operator")
    return [tuple(itertools.chain.from_iterable(atoms)) for atoms in itertools.product(*parts)]


def _property_alternatives(property_filter: Message, partition: Partition) -> _Alternatives:
    name = _property(property_filter.property)
    operator = property_filter.op
    value = property_filter.value
    if operator == PropertyFilter.HAS_ANCESTOR:
        if name != KEY:
            raise invalid("property must be __key__")
        path = _operand(name, value, partition)
        return [((KEY, Span(path, after_descendants(path)), None),)]
    if operator in (PropertyFilter.IN, PropertyFilter.NOT_IN):
        operands = _operands(name, value, partition)
        if operator == PropertyFilter.IN:
            return [(_equal(name, operand),) for operand in operands]
        if len(operands) > MAX_NOT_IN_VALUES:
            raise invalid(f"NOT_IN takes at most {MAX_NOT_IN_VALUES} values.")
        return _gaps(name, operands)
    operand = _operand(name, value, partition)
    if operator == PropertyFilter.EQUAL:
        return [(_equal(name, operand),)]
    if operator == PropertyFilter.NOT_EQUAL:
        return _gaps(name, [operand])
    spans = {
        PropertyFilter.LESS_THAN: Span(b"", operand),
        PropertyFilter.LESS_THAN_OR_EQUAL: Span(b"", successor(operand)),
        PropertyFilter.GREATER_THAN: Span(successor(operand), TOP),
        PropertyFilter.GREATER_THAN_OR_EQUAL: Span(operand, TOP),
    }
    span = spans.get(operator)
    if span is None:
        raise invalid("a property filter must specify an operator")
    return [((name, span, None),)]


def _equal(name: str, operand: bytes) -> _Atom:
    if name == KEY:
        return (KEY, Span(operand, successor(operand)), None)
    return (name, None, operand)


def _gaps(name: str, operands: Iterable[bytes]) -> _Alternatives:
    """Return the ranges between, below and above the operands."""
    gaps: _Alternatives = []
    low = b""
    for operand in sorted(set(operands)):
        gaps.append(((name, Span(low, operand), None),))
        low = successor(operand)
    return [*gaps, ((name, Span(low, TOP), None),)]


def _operands(name: str, value: ValuePb, partition: Partition) -> list[bytes]:
    validation.check_operand(name, value, partition)
    if value.WhichOneof("value_type") != "array_value" or not value.array_value.values:
        raise invalid("IN requires an non-empty ArrayValue.")
    return [_operand(name, element, partition) for element in value.array_value.values]


def _operand(name: str, value: ValuePb, partition: Partition) -> bytes:
    validation.check_operand(name, value, partition)
    if name == KEY:
        return _operand_key(value, partition)
    return encode_value(value)


def _operand_key(value: ValuePb, partition: Partition) -> bytes:
    if value.WhichOneof("value_type") != "key_value":
        raise invalid("__key__ filter value must be a Key")
    key = value.key_value
    validation.check_key(key, partition.project, partition.database)
    if key.partition_id.namespace_id != partition.namespace:
        raise invalid(
            f"The query namespace is '{partition.namespace}' but __key__ filter namespace is"
            f" '{key.partition_id.namespace_id}'."
        )
    return encode_key(key)
