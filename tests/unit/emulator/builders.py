"""Short ways to write keys, values and entities as protobuf messages."""

from typing import Any

from userlock_emulator.datastore.protos import (
    Entity,
    EntityPb,
    Key,
    KeyPb,
    Value,
    ValuePb,
    timestamp,
)

PROJECT = "test-project"


class GeoPoint(tuple[float, float]):
    """A (latitude, longitude) pair."""


class Timestamp(int):
    """Microseconds since the epoch."""


def key(*flat: str | int, namespace: str = "", project: str = PROJECT) -> KeyPb:
    """Return a key from a flat path: kind, identifier, kind, identifier …"""
    message = Key()
    message.partition_id.project_id = project
    if namespace:
        message.partition_id.namespace_id = namespace
    for index in range(0, len(flat), 2):
        element = message.path.add(kind=flat[index])
        if index + 1 < len(flat):
            identifier = flat[index + 1]
            if isinstance(identifier, int):
                element.id = identifier
            else:
                element.name = identifier
    return message


def value(python: Any, *, indexed: bool = True) -> ValuePb:
    """Return a value from the corresponding Python type; lists become arrays, dicts entities."""
    if isinstance(python, Value):
        return python
    message = Value()
    if not indexed:
        message.exclude_from_indexes = True
    if python is None:
        message.null_value = 0
    elif isinstance(python, bool):
        message.boolean_value = python
    elif isinstance(python, Timestamp):
        message.timestamp_value.CopyFrom(timestamp(python))
    elif isinstance(python, int):
        message.integer_value = python
    elif isinstance(python, float):
        message.double_value = python
    elif isinstance(python, str):
        message.string_value = python
    elif isinstance(python, bytes):
        message.blob_value = python
    elif isinstance(python, GeoPoint):
        message.geo_point_value.latitude, message.geo_point_value.longitude = python
    elif isinstance(python, list):
        message.ClearField("exclude_from_indexes")
        message.array_value.values.extend(value(item, indexed=indexed) for item in python)
        message.array_value.SetInParent()
    elif isinstance(python, dict):
        message.entity_value.SetInParent()
        for name, item in python.items():
            message.entity_value.properties[name].CopyFrom(value(item))
    else:
        message.key_value.CopyFrom(python)
    return message


def entity(entity_key: KeyPb, **properties: Any) -> EntityPb:
    """Return an entity; values that are not messages go through `value`."""
    message = Entity(key=entity_key)
    for name, item in properties.items():
        message.properties[name].CopyFrom(value(item))
    return message
