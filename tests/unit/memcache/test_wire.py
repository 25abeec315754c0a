"""Words, numbers and base64 keys as memcached's C code reads them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from userlock_emulator.memcache.wire import (
    decode_key,
    encode_key,
    parse_int32,
    parse_uint32,
    parse_uint64,
    split_line,
)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"get a", [b"get", b"a"]),
        (b"  get   a ", [b"get", b"a"]),
        (b"get a\tb\r", [b"get", b"a\tb\r"]),
        (b"get a\0 b", [b"get", b"a"]),
        (b"", []),
        (b"\0get", []),
    ],
)
def test_split_line(line: bytes, words: list[bytes]) -> None:
    assert split_line(line) == words


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"0", 0),
        (b"-1", -1),
        (b"+5", 5),
        (b"007", 7),
        (b"\t1", 1),
        (b"1\t2", 1),
        (b"2147483647", 2**31 - 1),
        (b"2147483648", -(2**31)),
        (b"9999999999", 1410065407),
        (b"9223372036854775808", None),
        (b"-9223372036854775808", 0),
        (b"9" * 5000, None),
        (b"", None),
        (b"-", None),
        (b"1x", None),
        (b"abc", None),
    ],
)
def test_parse_int32(text: bytes, number: int | None) -> None:
    assert parse_int32(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", None),
        (b"-1", None),
        (b"-18446744073709551615", 1),
        (b"1\r\n", 1),
        (b"1.5", None),
    ],
)
def test_parse_uint64(text: bytes, number: int | None) -> None:
    assert parse_uint64(text) == number


def test_parse_uint32_wraps() -> None:
    assert parse_uint32(b"4294967295") == 2**32 - 1
    assert parse_uint32(b"4294967296") == 0
    assert parse_uint32(b"-1") is None


@given(st.binary(min_size=1, max_size=180))
def test_binary_keys_survive_base64(key: bytes) -> None:
    assert decode_key(encode_key(key)) == key


@given(st.binary(max_size=60))
def test_decoding_never_fails_otherwise_than_with_none(text: bytes) -> None:
    decoded = decode_key(text)
    assert decoded is None or 0 < len(decoded) <= len(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b"Zm9v", b"foo"),
        (b"Zm9vYg==", b"foob"),
        (b"AB==", b"\0"),
        (b"AA=A", b"\0\0"),
        (b"=AAA", b"\0\0"),
        (b"Z!m9v", b"foo"),
        (b"Zg==Zm9v", b"f"),
        (b"A", None),
        (b"AAA", None),
        (b"A===", None),
        (b"!", None),
    ],
)
def test_decode_key_is_as_lenient_as_memcached(text: bytes, key: bytes | None) -> None:
    assert decode_key(text) == key


def test_encode_key() -> None:
    assert encode_key(b"foo\xff") == base64.b64encode(b"foo\xff")
