"""Property transforms: changes that the server computes from the stored entity.

Their semantics are those of the comments on `PropertyTransform`. A replaced value keeps its
`exclude_from_indexes`; the comments do not define this.
"""

import math
from collections.abc import Iterable

from userlock_emulator.datastore import validation
from userlock_emulator.datastore.catalog import Partition
from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.masks import PropertyPath, embedded_entity, parse_path
from userlock_emulator.datastore.protos import (
    ArrayValue,
    EntityPb,
    Message,
    PropertyTransform,
    Value,
    ValuePb,
    timestamp,
)

MAX_TRANSFORMS = 500
_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1
_MILLISECOND = 1000
_NUMERIC = ("increment", "maximum", "minimum")
_ARRAYS = ("append_missing_elements", "remove_all_from_array")
_NUMBERS = ("integer_value", "double_value")


def check_transforms(transforms: list[Message], partition: Partition) -> None:
    """Check the transforms of one mutation of an entity in this partition.

    Raises:
        DatastoreError: INVALID_ARGUMENT.
    """
    if sum(map(_weight, transforms)) > MAX_TRANSFORMS:
        raise invalid(f"An entity may have at most {MAX_TRANSFORMS} transforms.")
    for transform in transforms:
        parse_path(transform.property)
        which = transform.WhichOneof("transform_type")
        if which is None:
            raise invalid("Operation type must be specified for field transformation.")
        operand = getattr(transform, which)
        if which == "set_to_server_value" and operand != PropertyTransform.REQUEST_TIME:
            raise invalid(
                "ServerValue type must be specified for set_to_server_value transformation."
            )
        if which in _NUMERIC and operand.WhichOneof("value_type") not in _NUMBERS:
            raise invalid("Input must be int64 or double.")
        if which in _ARRAYS:
            for element in operand.values:
                validation.check_element(transform.property, element, partition)


def _weight(transform: Message) -> int:
    """Return the weight of a transform: one, or "each array element"."""
    which = transform.WhichOneof("transform_type")
    return max(1, len(getattr(transform, which).values)) if which in _ARRAYS else 1


def apply_transform(transform: Message, entity: EntityPb, time: int) -> ValuePb:
    """Apply a checked transform to an entity and return its result.

    Args:
        time: the server's, in microseconds.
    """
    inner, name = _reach(entity, parse_path(transform.property))
    stored = inner.properties.get(name)
    which = transform.WhichOneof("transform_type")
    operand = getattr(transform, which)
    new, result = Value(), Value(null_value=0)
    if which == "append_missing_elements":
        new.array_value.CopyFrom(_appended(_elements(stored), operand.values))
    elif which == "remove_all_from_array":
        new.array_value.CopyFrom(_without(_elements(stored), operand.values))
    else:
        if which == "set_to_server_value":
            new.timestamp_value.CopyFrom(timestamp(time - time % _MILLISECOND))
        elif stored is None or _number(stored) is None:
            new.CopyFrom(operand)
        elif which == "increment":
            new.CopyFrom(_sum(stored, operand))
        else:
            new.CopyFrom(_extreme(stored, operand, greatest=which == "maximum"))
        if stored is not None:
            new.exclude_from_indexes = stored.exclude_from_indexes
        result = new
    inner.properties[name].CopyFrom(new)
    return result


def _reach(entity: EntityPb, path: PropertyPath) -> tuple[EntityPb, str]:
    """Return the entity that holds the last property of a path, and that property's name."""
    for name in path[:-1]:
        entity = embedded_entity(entity, name)
    return entity, path[-1]


def _number(value: ValuePb) -> int | float | None:
    which = value.WhichOneof("value_type")
    number: int | float | None = getattr(value, which) if which in _NUMBERS else None
    return number


def _sum(stored: ValuePb, operand: ValuePb) -> ValuePb:
    one, other = _number(stored), _number(operand)
    assert one is not None
    assert other is not None
    if isinstance(one, int) and isinstance(other, int):
        return Value(integer_value=max(_MIN_INT64, min(one + other, _MAX_INT64)))
    return Value(double_value=float(one) + float(other))


def _extreme(stored: ValuePb, operand: ValuePb, *, greatest: bool) -> ValuePb:
    one, other = _number(stored), _number(operand)
    assert one is not None
    assert other is not None
    if math.isnan(one) or math.isnan(other):
        return Value(double_value=math.nan)
    return operand if (other > one if greatest else other < one) else stored


def _elements(stored: ValuePb | None) -> list[ValuePb]:
    return [] if stored is None else list(stored.array_value.values)


def _appended(present: list[ValuePb], given: Iterable[ValuePb]) -> Message:
    elements = list(present)
    for element in given:
        if not _contains(elements, element):
            elements.append(element)
    return ArrayValue(values=elements)


def _without(present: list[ValuePb], given: Iterable[ValuePb]) -> Message:
    unwanted = list(given)
    return ArrayValue(values=[item for item in present if not _contains(unwanted, item)])


def _contains(elements: list[ValuePb], wanted: ValuePb) -> bool:
    return any(_equivalent(element, wanted) for element in elements)


def _equivalent(one: ValuePb, other: ValuePb) -> bool:
    left, right = _number(one), _number(other)
    if left is not None and right is not None:
        return left == right or (math.isnan(left) and math.isnan(right))
    which = one.WhichOneof("value_type")
    if which != other.WhichOneof("value_type"):
        return False
    return bool(getattr(one, which) == getattr(other, which))
