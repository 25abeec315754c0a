"""The filters that a query may combine, by the comments of query.proto."""

import itertools
from collections.abc import Iterator

from userlock_emulator.datastore.encoding import encode_key
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.protos import CompositeFilter, Message, PropertyFilter, QueryPb

# "Disjunction limits": a query has at most 30 disjunctions in normal form.
MAX_DISJUNCTIONS = 30
MAX_NOT_IN_VALUES = 10
# As the Firestore emulator counts them: filters, sort orders and the ancestor.
MAX_CONDITIONS = 100
# "Range and inequality filters on multiple properties": limitations.
MAX_INEQUALITIES = 10
_INEQUALITIES = frozenset(
    {
        PropertyFilter.LESS_THAN,
        PropertyFilter.LESS_THAN_OR_EQUAL,
        PropertyFilter.GREATER_THAN,
        PropertyFilter.GREATER_THAN_OR_EQUAL,
        PropertyFilter.NOT_EQUAL,
        PropertyFilter.NOT_IN,
    }
)

_Ancestors = frozenset[bytes]


def check_filter(query: QueryPb) -> None:
    """Check the limits on a query's filters and orders in combination.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    operators = [leaf.op for leaf in _leaves(query.filter)] if query.HasField("filter") else []
    if len(operators) + len(query.order) > MAX_CONDITIONS:
        raise invalid(
            f"The query may not have more than {MAX_CONDITIONS} filters + sort orders + ancestor"
            f" total. Currently there are {len(operators)} filters, {len(query.order)} sort orders."
        )
    if not operators:
        return
    filter_pb = query.filter
    if _disjunctions(filter_pb) > MAX_DISJUNCTIONS:
        raise invalid(f"A query may have at most {MAX_DISJUNCTIONS} disjunctions.")
    ancestors = _ancestors(filter_pb)
    if len(ancestors) > 1 or any(len(each) > 1 for each in ancestors):
        raise invalid("All disjunctions must have a common and unique ancestor constraint.")
    if sum(operator in _INEQUALITIES for operator in operators) > MAX_INEQUALITIES:
        raise invalid(f"A query may have at most {MAX_INEQUALITIES} range or inequality filters.")
    unequal = operators.count(PropertyFilter.NOT_EQUAL)
    not_in = operators.count(PropertyFilter.NOT_IN)
    if unequal + not_in > 1:
        raise invalid("Only a single 'NOT_EQUAL' or 'NOT_IN' is allowed per query.")
    if not_in and (PropertyFilter.IN in operators or _has_alternatives(filter_pb)):
        raise invalid("'NOT_IN' cannot be used in the same query with 'IN' or 'OR'.")


def has_ancestor(filter_pb: Message) -> bool:
    """Return whether a filter requires an ancestor."""
    return any(leaf.op == PropertyFilter.HAS_ANCESTOR for leaf in _leaves(filter_pb))


def _leaves(filter_pb: Message) -> Iterator[Message]:
    if filter_pb.WhichOneof("filter_type") == "property_filter":
        yield filter_pb.property_filter
    for part in filter_pb.composite_filter.filters:
        yield from _leaves(part)


def _has_alternatives(filter_pb: Message) -> bool:
    composite = filter_pb.composite_filter
    if composite.op == CompositeFilter.OR and len(composite.filters) > 1:
        return True
    return any(_has_alternatives(part) for part in composite.filters)


def _disjunctions(filter_pb: Message) -> int:
    """Return the number of disjunctions in normal form. The gaps of != and NOT_IN do not count."""
    if filter_pb.WhichOneof("filter_type") == "property_filter":
        leaf = filter_pb.property_filter
        return len(leaf.value.array_value.values) if leaf.op == PropertyFilter.IN else 1
    parts = [_disjunctions(part) for part in filter_pb.composite_filter.filters]
    if filter_pb.composite_filter.op == CompositeFilter.OR:
        return sum(parts)
    product = 1
    for part in parts:
        product *= part
    return product


def _ancestors(filter_pb: Message) -> set[_Ancestors]:
    """Return the ancestors that the disjunctions require."""
    if filter_pb.WhichOneof("filter_type") == "property_filter":
        leaf = filter_pb.property_filter
        if leaf.op != PropertyFilter.HAS_ANCESTOR:
            return {frozenset()}
        return {frozenset([encode_key(leaf.value.key_value)])}
    parts = [_ancestors(part) for part in filter_pb.composite_filter.filters]
    if filter_pb.composite_filter.op == CompositeFilter.OR:
        return set().union(*parts)
    return {frozenset().union(*choice) for choice in itertools.product(*parts)}
