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
from google.protobuf import unknown_fields

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


class TicketedKey(Key):
    """A key whose message carries the number of a ticket.

    For one put or delete on its way to the commit, and never given to the application.

    Attributes:
        ticket: the number.
        plain: the key without it.
    """

    ticket = 0
    plain: Key

    def to_protobuf(self) -> Any:
        message = self.plain.to_protobuf()
        put_number(message._pb, self.ticket)
        return message


def ticketed(key: Any, number: int) -> TicketedKey:
    """Return a copy of a Datastore key that carries a ticket."""
    found = TicketedKey.__new__(TicketedKey)
    found.__dict__.update(key.__dict__)
    found.ticket, found.plain = number, key
    return found
