"""How an entity's version travels from Datastore's answer to the model object.

A look-up's answer carries each entity and its version side by side, but ndb
passes on the entity alone. The version is therefore noted on what ndb wraps
the Entity message in (see `reading`). Where there is a global cache it is put
into the message itself as well, as a field that Datastore's schema does not
know: protobuf keeps unknown fields, also through the cache. Entities that are
put are built anew and never carry it.

Where Datastore tells no version (an eventually consistent read, some
emulators) a fingerprint of the content stands for it: a number below zero.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from google.protobuf import unknown_fields

_FIELD = 7697260  # "usl" in ASCII; far above any number that Datastore's schema uses
_FIXED64 = 1
#: -1 is free for what else is not a version.
_FIRST_FINGERPRINT = -2


def _tag(field: int, wire_type: int) -> bytes:
    number = field << 3 | wire_type
    tag = bytearray()
    while number > 0x7F:
        tag.append(number & 0x7F | 0x80)
        number >>= 7
    tag.append(number)
    return bytes(tag)


_TAG = _tag(_FIELD, _FIXED64)
_packed = struct.Struct("<q")


def put_version(entity_pb: Any, version: int) -> None:
    """Write the version into a (raw) Entity message."""
    entity_pb.MergeFromString(_TAG + _packed.pack(version))


def version_in(entity_pb: Any) -> int:
    """The version in a (raw) Entity message; 0 when there is none."""
    version = 0
    fields: Any = unknown_fields.UnknownFieldSet(entity_pb)
    for field in fields:
        if field.field_number == _FIELD:
            version = field.data  # the last one counts, as in protobuf itself
    return version if version < 1 << 63 else version - (1 << 64)


def fingerprint(entity_pb: Any) -> int:
    """A number below -1 for what a (raw) Entity message has in its properties.

    Another content has the same one with a chance of 2 to the -62.
    """
    digest = hashlib.blake2b(digest_size=8)
    properties = entity_pb.properties
    for name in sorted(properties):
        value = properties[name].SerializeToString(deterministic=True)
        for part in (name.encode(), value):
            digest.update(len(part).to_bytes(8, "big") + part)
    return _FIRST_FINGERPRINT - (int.from_bytes(digest.digest(), "big") >> 2)
