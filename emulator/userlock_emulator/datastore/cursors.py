"""Cursors: the position after a result, as opaque bytes.

A cursor holds the order values and the key of the preceding result, not a count. It therefore keeps
its meaning when entities are inserted or removed before it. It also holds a fingerprint of the
query. The documentation allows a cursor only with its own query, or with that query in reverse
order, where the cursor is *before* the same result.
"""

import hashlib
import struct
from dataclasses import dataclass

from userlock_emulator.datastore.errors import DatastoreError, invalid
from userlock_emulator.datastore.query import ParsedQuery, position

_FORMAT = b"\x01"
_FINGERPRINT_BYTES = 8
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class Place:
    """A gap in the order of results.

    It lies just after `position`, or just before it if not `inclusive`. `components` are the parts
    of the position; empty at the very start.
    """

    position: bytes
    inclusive: bool = True
    components: tuple[bytes, ...] = ()

    def is_before(self, row_position: bytes) -> bool:
        """Return whether this place comes before a row."""
        if self.inclusive:
            return row_position > self.position
        return row_position >= self.position


def fingerprint(query: ParsedQuery) -> bytes:
    """Return a hash of the parts that two queries must share to share a cursor."""
    # Filters are a set: clients send alternatives in any order.
    filters = sorted(
        (
            sorted((name, sorted(values)) for name, values in conjunction.equal.items()),
            sorted(conjunction.spans.items()),
            conjunction.keys,
        )
        for conjunction in query.disjunction
    )
    names = [order.name for order in query.orders]
    text = repr((query.kind, filters, names, query.projection, query.distinct_on))
    return hashlib.blake2b(text.encode(), digest_size=_FINGERPRINT_BYTES).digest()


def encode_cursor(
    query_fingerprint: bytes, query: ParsedQuery, components: tuple[bytes, ...]
) -> bytes:
    """Return the cursor after the row with these components, or at the very start if there are
    none.
    """
    directions = bytes(query.directions[: len(components)])
    parts = [_FORMAT, query_fingerprint, bytes([len(components)]), directions]
    for component in components:
        parts += [_LENGTH.pack(len(component)), component]
    return b"".join(parts)


def decode_cursor(cursor: bytes, query_fingerprint: bytes, query: ParsedQuery) -> Place:
    """Return the place of a cursor in this query.

    Raises:
        DatastoreError: INVALID_ARGUMENT if the cursor is damaged or belongs to
            another query.
    """
    try:
        components, directions = _parse(cursor, query_fingerprint)
    except (IndexError, struct.error) as error:
        raise _damaged() from error
    if not components:
        return Place(b"", inclusive=False)
    if len(components) != len(query.directions):
        raise _damaged()
    # The first direction tells whether this is the same order or its reverse.
    reverse = directions[0] != query.directions[0]
    return Place(position(components, query.directions), not reverse, components)


def _parse(cursor: bytes, query_fingerprint: bytes) -> tuple[tuple[bytes, ...], tuple[bool, ...]]:
    header = 1 + _FINGERPRINT_BYTES
    if cursor[:1] != _FORMAT:
        raise _damaged()
    if cursor[1:header] != query_fingerprint:
        raise invalid("The cursor belongs to another query.")
    count = cursor[header]
    start = header + 1
    directions = tuple(bool(direction) for direction in cursor[start : start + count])
    start += count
    components = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(cursor, start)
        start += _LENGTH.size
        if start + length > len(cursor):
            raise _damaged()
        components.append(cursor[start : start + length])
        start += length
    if start != len(cursor) or len(directions) != count:
        raise _damaged()
    return tuple(components), directions


def _damaged() -> DatastoreError:
    return invalid("The cursor is not valid.")
