"""Words, numbers and base64 keys as memcached's C code reads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from userlock_emulator.memcache.wire import (
    decode_key,
    encode_key,
)


@given(st.binary(min_size=1, max_size=180))
def test_binary_keys_survive_base64(key: bytes) -> None:
    assert decode_key(encode_key(key)) == key


@given(st.binary(max_size=60))
def test_decoding_never_fails_otherwise_than_with_none(text: bytes) -> None:
    decoded = decode_key(text)
    assert decoded is None or 0 < len(decoded) <= len(text)
