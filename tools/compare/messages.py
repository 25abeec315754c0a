"""Keys, values and entities as messages, and as the texts that are compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from google.protobuf.json_format import MessageToDict

from userlock_emulator.datastore.protos import Entity, Key, Message, Value, timestamp

# INDEX_VALUE: the service marks projected values by it.
_INDEX_VALUE = 18

Path = tuple[str | int, ...]


class At(int):
    """A time, in microseconds since the epoch."""


class Unindexed(str):
    """A text that is excluded from indexes."""


class Embedded(dict[str, Any]):
    """The properties of an embedded entity."""


def key(project: str, path: Path, namespace: str = "") -> Message:
    """Return a key; a path of odd length lacks the last id."""
    message = Key()
    message.partition_id.project_id = project
    message.partition_id.namespace_id = namespace
    for index in range(0, len(path), 2):
        element = message.path.add(kind=str(path[index]))
        if index + 1 < len(path):
            identifier = path[index + 1]
            if isinstance(identifier, int):
                element.id = identifier
            else:
                element.name = identifier
    return message


def value(python: Any, project: str) -> Message:
    """Return a value: lists become arrays, and tuples keys."""
    message = Value()
    match python:
        case None:
            message.null_value = 0
        case bool():
            message.boolean_value = python
        case At():
            message.timestamp_value.CopyFrom(timestamp(python))
        case int():
            message.integer_value = python
        case float():
            message.double_value = python
        case Unindexed():
            message.string_value = python
            message.exclude_from_indexes = True
        case str():
            message.string_value = python
        case bytes():
            message.blob_value = python
        case tuple():
            message.key_value.CopyFrom(key(project, python))
        case list():
            message.array_value.SetInParent()
            message.array_value.values.extend(value(item, project) for item in python)
        case Embedded():
            message.entity_value.SetInParent()
            for name, item in python.items():
                message.entity_value.properties[name].CopyFrom(value(item, project))
        case _:
            raise TypeError(python)
    return message


def entity(project: str, path: Path, properties: dict[str, Any], namespace: str = "") -> Message:
    """Return an entity."""
    message = Entity(key=key(project, path, namespace))
    for name, item in properties.items():
        message.properties[name].CopyFrom(value(item, project))
    return message


def key_text(message: Message) -> str:
    """Return a key's namespace and path, without the project."""
    path = "/".join(
        f"{element.kind}:{element.name!r}" if element.name else f"{element.kind}:{element.id}"
        for element in message.path
    )
    namespace = message.partition_id.namespace_id
    return f"[{namespace}] {path}" if namespace else path


def entity_text(message: Message) -> str:
    """Return an entity's key and properties."""
    return f"{key_text(message.key)} {_properties(message)}"


def value_text(message: Message) -> str:
    """Return a value with its type, its meaning, and whether it is indexed.

    The meaning of a value that was read from an index is not shown; see `from_index`.
    """
    which = message.WhichOneof("value_type")
    if which == "key_value":
        text = key_text(message.key_value)
    elif which == "array_value":
        text = f"[{_texts(message.array_value.values)}]"
    elif which == "entity_value":
        text = _properties(message.entity_value)
    elif which is None:
        text = "nothing"
    else:
        plain = MessageToDict(message)
        plain.pop("excludeFromIndexes", None)
        plain.pop("meaning", None)
        text = json.dumps(plain, sort_keys=True)
    if message.meaning not in (0, _INDEX_VALUE):
        text += f" (meaning {message.meaning})"
    return f"{text} (not indexed)" if message.exclude_from_indexes else text


def from_index(message: Message) -> bool:
    """Return whether an entity has a value that is marked as read from an index."""
    return any(each.meaning == _INDEX_VALUE for each in message.properties.values())


def _properties(message: Message) -> str:
    named = message.properties
    return f"{{{', '.join(f'{name}={value_text(named[name])}' for name in sorted(named))}}}"


def _texts(values: Iterable[Message]) -> str:
    return ", ".join(map(value_text, values))
