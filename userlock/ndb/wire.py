"""Numbers of ours in Datastore's messages: versions in entities, tickets in keys.

Each is a field that Datastore's schema does not know. protobuf keeps unknown
fields through copying, parsing and serialising, and ndb does not look at them.
A version stays with an entity through the global cache; a ticket is taken out
of a key before it leaves the process.
"""

from __future__ import annotations

import secrets
import struct
from typing import Any

from google.cloud.datastore import Key
from google.cloud.datastore_v1.types.entity import Key as KeyMessage
from google.protobuf import unknown_fields

_KeyMessage: Any = KeyMessage
_RawKey: Any = KeyMessage.pb()

_FIELD = 7697260  # "usl" in ASCII; far above any number that Datastore's schema uses
_FIXED64 = 1


def _tag(field: int, wire_type: int) -> bytes:
    number = field << 3 | wire_type
    tag = bytearray()
    while number > 0x7F:
        tag.append(number & 0x7F | 0x80)
        number >>= 7
    tag.append(number)
    return bytes(tag)


_TAG = _tag(_FIELD, _FIXED64)
_packed = struct.Struct("<Q")


def put_number(message: Any, number: int) -> None:
    """Write a number from 0 to 2^64 - 1 into a (raw) message."""
    message.MergeFromString(_TAG + _packed.pack(number))


def number_in(message: Any) -> int:
    """Return the number in a (raw) message; 0 when there is none."""
    number = 0
    fields: Any = unknown_fields.UnknownFieldSet(message)
    for field in fields:
        if field.field_number == _FIELD:
            number = field.data  # the last one counts, as in protobuf itself
    return number


#: Stands in a request that has passed a gate, where an application has put a stub of its own
#: between that gate and another one.
_PASSED = secrets.randbits(63) | 1


def mark_passed(request: Any) -> None:
    """Note in a (raw) request that it has passed a gate."""
    put_number(request, _PASSED)


def has_passed(request: Any) -> bool:
    """Return whether a (raw) request has passed a gate."""
    return number_in(request) == _PASSED


def kind_in(path: tuple[Any, ...]) -> str:
    """Return the kind that a path names: kind, id, kind, id, ...; the last id may be missing."""
    kind: str = path[len(path) % 2 - 2]
    return kind


class QuickKey(Key):
    """A Datastore key that makes its message, and tells its kind, in a tenth of the time.

    google-cloud-datastore's own sets each field through proto-plus, and copies its path deeply to
    look at it.
    """

    def to_protobuf(self) -> Any:
        return _KeyMessage.wrap(_message_of(self))

    @property
    def kind(self) -> str:
        return kind_in(self.flat_path)

    @property
    def is_partial(self) -> bool:
        return len(self.flat_path) % 2 == 1


class PlainKey:
    """A key whose message has been made already."""

    __slots__ = ("_pb",)

    def __init__(self, message: Any) -> None:
        self._pb = message

    def to_protobuf(self) -> Any:
        return self


class TicketedKey(QuickKey):
    """A key whose message carries the number of a ticket.

    For one put or delete on its way to the commit, and never given to the application.

    Attributes:
        ticket: the number.
    """

    ticket = 0
    _plain: PlainKey | None = None

    @property
    def plain(self) -> PlainKey:
        """Return the key without it."""
        if self._plain is None:
            self._plain = PlainKey(_message_of(self))
        return self._plain

    def to_protobuf(self) -> Any:
        message = _RawKey()
        message.CopyFrom(self.plain._pb)
        put_number(message, self.ticket)
        return _KeyMessage.wrap(message)


def quick(key: Any) -> QuickKey:
    """Return a copy of a Datastore key that makes its message quickly."""
    found: QuickKey = _alike(QuickKey, key)
    return found


def ticketed(key: Any, number: int) -> TicketedKey:
    """Return a copy of a Datastore key that carries a ticket."""
    found: TicketedKey = _alike(TicketedKey, key)
    found.ticket = number
    return found


def _message_of(key: Any) -> Any:
    """Return the (raw) message of a key."""
    message = _RawKey()
    partition = message.partition_id
    partition.project_id = key.project
    if key.database:
        partition.database_id = key.database
    if key.namespace:
        partition.namespace_id = key.namespace
    add = message.path.add
    path = iter(key.flat_path)
    for kind in path:
        name = next(path, None)
        if name is None:
            add(kind=kind)
        elif isinstance(name, str):
            add(kind=kind, name=name)
        else:
            add(kind=kind, id=name)
    return message


#: What a key consists of. Not copied by `__dict__`: asked for that, each key would keep a dict.
_PARTS = tuple(vars(Key("Kind", project="project")))


def _alike(kind: Any, key: Any) -> Any:
    found = kind.__new__(kind)
    for name in _PARTS:
        setattr(found, name, getattr(key, name))
    return found
