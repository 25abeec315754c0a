"""Numbers of ours in Datastore's messages: versions in entities, tickets in keys.

Each is a field that Datastore's schema does not have. protobuf keeps such a field when it
copies, parses and serialises, and ndb ignores it. So a version stays with an entity through
the global cache. A ticket is taken out of its key before the key leaves the process.
"""

from __future__ import annotations

import secrets
from typing import Any, Self

from google.cloud.datastore import Key
from google.cloud.datastore_v1.types.entity import Key as KeyMessage
from google.protobuf import unknown_fields

_KeyMessage: Any = KeyMessage
_RawKey: Any = KeyMessage.pb()

_FIELD = 7697260  # "usl" in ASCII; far above any field number of Datastore's schema
_TAG = b"\xe1\xb6\xae\x1d"  # that field with the wire type of 64 bits, as a varint


def raw(message: Any) -> Any:
    """Return the protobuf message within one of google-cloud-datastore's."""
    return getattr(message, "_pb", message)


def put_number(message: Any, number: int) -> None:
    """Write a number from 0 to 2^64 - 1 into a (raw) message."""
    message.MergeFromString(_TAG + number.to_bytes(8, "little"))


def number_in(message: Any) -> int:
    """Return the number in a (raw) message; 0 if there is none."""
    number = 0
    fields: Any = unknown_fields.UnknownFieldSet(message)
    for field in fields:
        if field.field_number == _FIELD:
            number = field.data  # the last one counts, as in protobuf itself
    return number


#: The number of a request that has passed a gate. An application may have put a stub of its own
#: between that gate and another one.
PASSED = secrets.randbits(63) | 1


def note_passed(request: Any) -> None:
    put_number(request, PASSED)


class QuickKey(Key):
    """A Datastore key that makes its message and names its kind in a tenth of the usual time."""

    @classmethod
    def like(cls, key: Any) -> Self:
        copy = cls.__new__(cls)
        vars(copy).update(vars(key))
        return copy

    def to_protobuf(self) -> Any:
        return _KeyMessage.wrap(message_of(self))

    @property
    def kind(self) -> Any:
        path = self.flat_path
        return path[len(path) % 2 - 2]

    @property
    def is_partial(self) -> bool:
        return len(self.flat_path) % 2 == 1


class PlainKey:
    """A key whose message has been made already."""

    def __init__(self, message: Any) -> None:
        self._pb = message

    def to_protobuf(self) -> Any:
        return self


class TicketedKey(QuickKey):
    """A key whose message carries the number of a write. The application never gets it."""

    number: int
    plain: PlainKey  # the key without the number

    @classmethod
    def of(cls, key: Any, number: int) -> Self:
        copy = cls.__new__(cls)
        vars(copy).update(vars(key), number=number, plain=PlainKey(message_of(key)))
        return copy

    def to_protobuf(self) -> Any:
        message = _RawKey()
        message.CopyFrom(self.plain._pb)
        put_number(message, self.number)
        return _KeyMessage.wrap(message)


def message_of(key: Any) -> Any:
    """Return the (raw) message of a key, one of google-cloud-datastore's."""
    message = _RawKey()
    partition = message.partition_id
    partition.project_id = key.project
    if key.database:
        partition.database_id = key.database
    if key.namespace:
        partition.namespace_id = key.namespace
    path = iter(key.flat_path)
    for kind in path:
        element = message.path.add(kind=kind)
        name = next(path, None)
        if isinstance(name, str):
            element.name = name
        elif name is not None:
            element.id = name
    return message
