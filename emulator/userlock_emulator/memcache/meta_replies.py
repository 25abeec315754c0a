"""Checks and replies shared by the meta commands."""

from __future__ import annotations

from userlock_emulator.memcache.item import Item
from userlock_emulator.memcache.meta_flags import FlagError, MetaFlags
from userlock_emulator.memcache.steps import BAD_FORMAT, CRLF, ERROR, Step, line
from userlock_emulator.memcache.wire import MAX_KEY_BYTES, encode_key

MAX_WORDS = 19
TOO_MANY_FLAGS = b"CLIENT_ERROR options flags too long"

_MAX_OPAQUE_BYTES = 32


def check_words(words: list[bytes], too_many: bytes) -> Step | None:
    """Return the refusal of a line with no key, a key too long or too many flags, or None."""
    if len(words) < 2:
        return line(ERROR)
    if len(words[1]) > MAX_KEY_BYTES:
        return line(BAD_FORMAT)
    if len(words) > MAX_WORDS:
        return line(too_many)
    return None


def found(
    fields: list[bytes], value: bytes | None, reads: Item | None = None, *, quiet: bool = False
) -> Step:
    """Return the reply about an item, with its value if requested."""
    if quiet:
        return Step()
    if value is None:
        return Step(reply=(b" ".join([b"HD", *fields]) + CRLF,), reads=reads)
    head = b" ".join([b"VA %d" % len(value), *fields])
    return Step(reply=(head + CRLF, value, CRLF), reads=reads)


def echo_fields(flags: MetaFlags) -> list[bytes]:
    """Return the fields that are echoed without an item: opaque and key."""
    fields: list[bytes] = []
    for word in flags.words:
        match word[:1]:
            case b"O":
                fields.append(opaque_field(word))
            case b"k":
                fields += key_fields(flags.key, binary=flags.binary_key)
    return fields


def opaque_field(word: bytes) -> bytes:
    """Return an opaque word for the reply; raise FlagError if it is too long."""
    if len(word) > _MAX_OPAQUE_BYTES:
        raise FlagError(b"CLIENT_ERROR opaque token too long")
    return word


def key_fields(key: bytes, *, binary: bool) -> list[bytes]:
    """Return the fields that contain the key."""
    return [b"k" + encode_key(key), b"b"] if binary else [b"k" + key]
