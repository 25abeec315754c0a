"""The index entries of an entity.

Every indexed property is indexed on its own, with one entry per distinct value. An array
contributes each of its elements, an empty array none. The properties of an embedded entity appear
under dotted names (`address.city`). ndb's flattened structured properties have the same names, so
one query finds both. Values, array elements and embedded entities marked `exclude_from_indexes` are
invisible to queries.
"""

from userlock_emulator.datastore.encoding import ENCODERS, encode_value
from userlock_emulator.datastore.protos import EntityPb, ValuePb

# Property name to its distinct encoded values, ascending.
IndexedValues = dict[str, tuple[bytes, ...]]


def indexed_values(entity: EntityPb) -> IndexedValues:
    """Return the indexed properties of `entity` with their encoded values, ascending."""
    indexed: IndexedValues = {}
    collected: dict[str, set[bytes]] = {}
    properties = entity.properties
    for name in properties:  # `items()` of a message takes twice as long
        value = properties[name]
        # Most properties have one value.
        encode = ENCODERS.get(value.WhichOneof("value_type"))
        if encode is None:
            _collect(collected, name, value)
        elif not value.exclude_from_indexes:
            indexed[name] = (encode(value),)
    for name, values in collected.items():
        # An embedded entity's property may have the name of another property.
        indexed[name] = tuple(sorted(values.union(indexed.get(name, ()))))
    return indexed


def _collect(collected: dict[str, set[bytes]], name: str, value: ValuePb) -> None:
    if value.exclude_from_indexes:
        return
    kind = value.WhichOneof("value_type")
    if kind == "array_value":
        for element in value.array_value.values:
            _collect(collected, name, element)
    elif kind == "entity_value":
        for inner_name, inner in value.entity_value.properties.items():
            _collect(collected, f"{name}.{inner_name}", inner)
    elif kind is not None:
        encoded = encode_value(value)
        values = collected.get(name)
        if values is None:
            collected[name] = {encoded}
        else:
            values.add(encoded)
