"""Keys and values as byte strings whose byte order is the documented order.

With these encodings SQLite's memcmp of two BLOBs gives every comparison that the query engine
needs. Index rows are stored, scanned and merged without decoding a value.

Values sort across types as documented in "Entity property reference, Properties and value types":
null; fixed-point numbers (integers and dates share one scale, dates counting microseconds);
booleans; byte sequences (blobs and strings share one order, strings by their UTF-8 bytes);
floating-point numbers; geographical points (latitude, then longitude); keys. NaN sorts below every
other number and -0.0 equals 0.0. Where two types share a scale, a final type byte keeps an integer
from being equal to a date.

Keys sort by path: kind, then identifier, numeric ones before names, an ancestor before its
descendants.

Guarantees: an encoded value or path element is never a proper prefix of another one. Concatenations
therefore sort component by component. An encoded path is a prefix of exactly its descendants'
paths, which makes "has ancestor" a range.
"""

import functools
import struct
from collections.abc import Callable, Iterable

from userlock_emulator.datastore.errors import invalid
from userlock_emulator.datastore.protos import KeyPb, Value, ValuePb, microseconds

_TERMINATOR = b"\x00\x01"
_ESCAPED_ZERO = b"\x00\xff"
_ID, _NAME = b"\x01", b"\x02"

_NULL = b"\x10"
_FIXED_POINT = b"\x20"
_BOOLEAN = b"\x28"
_BYTES = b"\x30"
_DOUBLE = b"\x40"
_GEO_POINT = b"\x50"
_KEY = b"\x60"

_INTEGER_TYPE, _TIMESTAMP_TYPE = b"\x00", b"\x01"
_BLOB_TYPE, _STRING_TYPE = b"\x00", b"\x01"

# The service marks a value that comes from an index, and so do Google's emulators. A date is a
# number of microseconds then, not a Timestamp.
_INDEX_VALUE = 18

_INT64 = struct.Struct(">Q")
_FLOAT64 = struct.Struct(">d")
_SIGN = 1 << 63
_ALL_BITS = (1 << 64) - 1
_COMPLEMENT = bytes(range(255, -1, -1))


def escape(raw: bytes) -> bytes:
    """Return `raw` in a self-delimiting form; shorter strings sort before their extensions."""
    return raw.replace(b"\x00", _ESCAPED_ZERO) + _TERMINATOR


def _unescape(data: bytes, start: int) -> tuple[bytes, int]:
    end = start
    while True:
        end = data.index(b"\x00", end)
        if data[end : end + 2] == _TERMINATOR:
            return data[start:end].replace(_ESCAPED_ZERO, b"\x00"), end + 2
        end += 2


def complement(encoded: bytes) -> bytes:
    """Return the bytes that sort in the opposite order (for self-delimiting encodings)."""
    return encoded.translate(_COMPLEMENT)


@functools.lru_cache(1024)
def _encode_kind(kind: str) -> bytes:
    return escape(kind.encode())


def encode_path(path: Iterable[KeyPb]) -> bytes:
    """Return a complete key path. The caller has checked that it is complete."""
    parts = []
    for element in path:
        parts.append(_encode_kind(element.kind))
        if element.WhichOneof("id_type") == "name":
            parts.append(_NAME + escape(element.name.encode()))
        else:
            parts.append(_ID + _INT64.pack(element.id + _SIGN))
    return b"".join(parts)


def encode_key(key: KeyPb) -> bytes:
    """Return the path of `key`, without its partition."""
    return encode_path(key.path)


def decode_path(encoded: bytes, key: KeyPb) -> KeyPb:
    """Fill the path of the message `key` from an encoded path and return it."""
    position = 0
    while position < len(encoded):
        element = key.path.add()
        kind, position = _unescape(encoded, position)
        element.kind = kind.decode()
        position += 1
        if encoded[position - 1 : position] == _NAME:
            name, position = _unescape(encoded, position)
            element.name = name.decode()
        else:
            element.id = _INT64.unpack_from(encoded, position)[0] - _SIGN
            position += 8
    return key


def root_of(encoded: bytes) -> bytes:
    """Return the encoded path of the root entity of an encoded path (its entity group)."""
    _, position = _unescape(encoded, 0)
    if encoded[position : position + 1] == _NAME:
        _, position = _unescape(encoded, position + 1)
    else:
        position += 9
    return encoded[:position]


def after_descendants(encoded: bytes) -> bytes:
    """Return the smallest byte string above `encoded` and all its descendants' paths."""
    return encoded + b"\xff"


def successor(encoded: bytes) -> bytes:
    """Return the smallest byte string above `encoded`."""
    return encoded + b"\x00"


def delimited(encoded_path: bytes) -> bytes:
    """Return an encoded path in a self-delimiting form, which can be complemented."""
    return encoded_path + _TERMINATOR


def _encode_double(number: float) -> bytes:
    if number != number:
        return _DOUBLE + b"\x00" * 8
    # Adding 0.0 turns -0.0 into 0.0.
    (bits,) = _INT64.unpack(_FLOAT64.pack(number + 0.0))
    bits = bits ^ _ALL_BITS if bits & _SIGN else bits | _SIGN
    return _DOUBLE + _INT64.pack(bits)


def _decode_double(data: bytes) -> float:
    (bits,) = _INT64.unpack(data)
    if bits == 0:
        return float("nan")
    bits = bits ^ _SIGN if bits & _SIGN else bits ^ _ALL_BITS
    (number,) = _FLOAT64.unpack(_INT64.pack(bits))
    return float(number)


def encode_value(value: ValuePb) -> bytes:
    """Return a value as index rows store it.

    Raises:
        DatastoreError: INVALID_ARGUMENT for arrays, embedded entities and unset
            values, which have no single index value.
    """
    kind = value.WhichOneof("value_type")
    encoder = ENCODERS.get(kind)
    if encoder is None:
        raise invalid(f"A{'n entity' if kind == 'entity_value' else ' list'} value is not allowed")
    return encoder(value)


def _encode_key_value(value: ValuePb) -> bytes:
    key = value.key_value
    partition = key.partition_id
    return (
        _KEY
        + escape(partition.project_id.encode())
        + escape(partition.database_id.encode())
        + escape(partition.namespace_id.encode())
        + delimited(encode_key(key))
    )


def _encode_geo_point(value: ValuePb) -> bytes:
    point = value.geo_point_value
    # The inner type byte is constant and harmless.
    return _GEO_POINT + _encode_double(point.latitude) + _encode_double(point.longitude)


def _encode_fixed_point(number: int, type_byte: bytes) -> bytes:
    return _FIXED_POINT + _INT64.pack(number + _SIGN) + type_byte


#: By the type of the value; arrays, embedded entities and unset values have none.
ENCODERS: dict[str | None, Callable[[ValuePb], bytes]] = {
    "null_value": lambda value: _NULL,
    "integer_value": lambda value: (
        _FIXED_POINT + _INT64.pack(value.integer_value + _SIGN) + _INTEGER_TYPE
    ),
    "timestamp_value": lambda value: _encode_fixed_point(
        microseconds(value.timestamp_value), _TIMESTAMP_TYPE
    ),
    "boolean_value": lambda value: _BOOLEAN + (b"\x01" if value.boolean_value else b"\x00"),
    "blob_value": lambda value: _BYTES + escape(value.blob_value) + _BLOB_TYPE,
    "string_value": lambda value: _BYTES + escape(value.string_value.encode()) + _STRING_TYPE,
    "double_value": lambda value: _encode_double(value.double_value),
    "geo_point_value": _encode_geo_point,
    "key_value": _encode_key_value,
}


def decode_number(encoded: bytes) -> int | float | None:
    """Return the number that the value of an index row is in sums: a date's microseconds, None for
    other types.
    """
    tag = encoded[:1]
    if tag == _FIXED_POINT:
        return int(_INT64.unpack_from(encoded, 1)[0]) - _SIGN
    return _decode_double(encoded[1:]) if tag == _DOUBLE else None


def decode_value(encoded: bytes) -> ValuePb:
    """Return the value of an index row, as a projection query returns it.

    It has meaning 18, and a date becomes its microseconds, as in the service.
    """
    value = Value(meaning=_INDEX_VALUE)
    tag, body = encoded[:1], encoded[1:]
    if tag == _NULL:
        value.null_value = 0
    elif tag == _FIXED_POINT:
        value.integer_value = _INT64.unpack_from(body)[0] - _SIGN
    elif tag == _BOOLEAN:
        value.boolean_value = body == b"\x01"
    elif tag == _BYTES:
        raw, _ = _unescape(body, 0)
        if body[-1:] == _STRING_TYPE:
            value.string_value = raw.decode()
        else:
            value.blob_value = raw
    elif tag == _DOUBLE:
        value.double_value = _decode_double(body)
    elif tag == _GEO_POINT:
        value.geo_point_value.latitude = _decode_double(body[1:9])
        value.geo_point_value.longitude = _decode_double(body[10:18])
    else:
        _decode_key_value(body, value.key_value)
    return value


def _decode_key_value(body: bytes, key: KeyPb) -> None:
    project, position = _unescape(body, 0)
    database, position = _unescape(body, position)
    namespace, position = _unescape(body, position)
    key.partition_id.project_id = project.decode()
    key.partition_id.database_id = database.decode()
    key.partition_id.namespace_id = namespace.decode()
    decode_path(body[position : -len(_TERMINATOR)], key)


# The ranges of encoded values that metadata queries distinguish, with their names.
REPRESENTATIONS = [
    ((tag, bytes([tag[0] + 1])), name)
    for tag, name in (
        (_BOOLEAN, "BOOLEAN"),
        (_DOUBLE, "DOUBLE"),
        (_FIXED_POINT, "INT64"),
        (_NULL, "NULL"),
        (_GEO_POINT, "POINT"),
        (_KEY, "REFERENCE"),
        (_BYTES, "STRING"),
    )
]


__all__ = [
    "ENCODERS",
    "REPRESENTATIONS",
    "after_descendants",
    "complement",
    "decode_number",
    "decode_path",
    "decode_value",
    "delimited",
    "encode_key",
    "encode_path",
    "encode_value",
    "escape",
    "root_of",
    "successor",
]
