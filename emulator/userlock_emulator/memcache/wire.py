"""Words and numbers on the wire, read the way memcached's C code reads them.

Source: memcached's doc/protocol.txt for the forms. Where it is silent (wrapping numbers, leading
blanks, a NUL in a line), memcached 1.6.18 is the reference;
`tests/contract/memcache/test_differential.py` compares with it.
"""

from __future__ import annotations

import base64
import re

MAX_KEY_BYTES = 250

_NUMBER = re.compile(rb"[\t\n\v\f\r ]*([+-]?)0*([0-9]+)(?=[\t\n\v\f\r ]|\Z)")
_BASE64_ALPHABET = re.compile(rb"[^A-Za-z0-9+/=]")
# No 64-bit number has more digits than this.
_MAX_DIGITS = 20


def split_line(line: bytes) -> list[bytes]:
    """Return the words of a command line without its line end; a NUL ends the line early."""
    end = line.find(b"\0")
    if end >= 0:
        line = line[:end]
    # bytes.split() with no argument would split at tabs too: a tab is part of a key.
    return [word for word in line.split(b" ") if word]


def parse_int32(text: bytes) -> int | None:
    """Parse a signed number, or return None. It wraps around at 32 bits; beyond 64 bits: None."""
    match = _NUMBER.match(text)
    if match is None or len(match[2]) > _MAX_DIGITS:
        return None
    number = int(match[1] + match[2])
    if not -(2**63) <= number < 2**63:
        return None
    return (number + 2**31) % 2**32 - 2**31


def parse_uint64(text: bytes) -> int | None:
    """Parse an unsigned number up to 2**64 - 1, or return None.

    A minus sign is refused only if the wrapped number has its top bit set: memcached takes
    -18446744073709551615 for 1.
    """
    match = _NUMBER.match(text)
    if match is None or len(match[2]) > _MAX_DIGITS:
        return None
    magnitude = int(match[2])
    if magnitude >= 2**64:
        return None
    number = -magnitude % 2**64 if match[1] == b"-" else magnitude
    if number >= 2**63 and b"-" in text:
        return None
    return number


def parse_uint32(text: bytes) -> int | None:
    """Parse an unsigned number, or return None; larger ones wrap around at 32 bits."""
    number = parse_uint64(text)
    return None if number is None else number % 2**32


def decode_key(text: bytes) -> bytes | None:
    """Decode a base64 key (the meta commands' `b` flag); return None if it is malformed.

    It is as lenient as memcached: letters outside the alphabet are skipped, the block with the
    first `=` is the last one, and `=` counts as zero everywhere.
    """
    digits = _BASE64_ALPHABET.sub(b"", text)
    if not digits or len(digits) % 4:
        return None
    blocks = [digits[start : start + 4] for start in range(0, len(digits), 4)]
    decoded = b""
    for block in blocks:
        padding = block.count(b"=")
        if padding > 2:
            return None
        triple = base64.b64decode(block.replace(b"=", b"A"))
        decoded += triple[: 3 - padding]
        if padding:
            break
    return decoded or None


def encode_key(key: bytes) -> bytes:
    """Encode a binary key as the meta commands' `k` flag returns it."""
    return base64.b64encode(key)
