"""Random memcached commands: a small key space, mostly well formed, some not."""

from __future__ import annotations

from hypothesis import strategies as st

from userlock_emulator.memcache.wire import MAX_KEY_BYTES

Bytes = st.SearchStrategy[bytes]

CRLF = b"\r\n"

_PLAIN_KEYS = [b"a"] * 8 + [b"n"] * 8 + [b"b"] * 2
_BASE64_KEYS = [b"Zm9v", b"AA==", b"A"]
_ODD_KEYS = [
    b"foo",
    "é".encode(),
    b"k" * MAX_KEY_BYTES,
    b"k" * (MAX_KEY_BYTES + 1),
    b"a\tb",
    b"\x01",
]
_keys = st.sampled_from(_PLAIN_KEYS * 2 + _BASE64_KEYS + _ODD_KEYS)


def _is_safe(value: bytes) -> bool:
    """Return whether memcached's reading of it as a number depends on nothing but the value."""
    return not value or (not value.isspace() and b"-" not in value)


_values = st.one_of(
    st.sampled_from(
        [b"", b"x", b"1 2", b" 7", b"+3", b"12a", b"a\r\nget a\r\nb", b"END", b"1\x002"]
    ),
    st.integers(0, 120).map(lambda number: b"%d" % number),
    st.integers(0, 120).map(lambda number: b"%d" % number),
    st.sampled_from([b"18446744073709551615", b"18446744073709551616", b"9" * 400]),
    st.binary(max_size=12).filter(_is_safe),
)
# No short times to live: their expiry within a conversation depends on the second.
_exptimes = st.sampled_from(
    [b"0", b"0", b"30", b"100", b"-1", b"2592000", b"2592001", b"2147483647"]
)
_flags = st.sampled_from([b"0", b"1", b"77", b"4294967295", b"4294967296"])
_deltas = st.sampled_from(
    [b"1", b"1", b"2", b"15", b"18446744073709551615", b"-18446744073709551615"]
)
_bad_words = st.sampled_from(
    [
        b"abc",
        b"-1",
        b"-2",
        b"+1",
        b"1x",
        b"99999999999",
        b"noreply",
        b"",
        b"1\t2",
        b"\x80",
        b"0",
        b"@1",
    ]
)
_cas_numbers = st.sampled_from(
    [b"@1", b"@1", b"@4", b"@4", b"@5", b"@6", b"@7", b"@8", b"0", b"1", b"999999999", b"abc"]
)
_lengths = st.sampled_from([b"0", b"1", b"2", b"3"])
_noreply = st.sampled_from([b"", b"", b"", b" noreply"])


def _mutate(words: list[bytes], draw: st.DrawFn) -> list[bytes]:
    if draw(st.integers(0, 11)):
        return words
    at = draw(st.integers(1, len(words)))
    kind = draw(st.sampled_from(["drop", "insert", "replace"]))
    word = [] if kind == "drop" else [draw(_bad_words)]
    return words[:at] + word + words[at if kind == "insert" else at + 1 :]


def _line(words: list[bytes]) -> bytes:
    return b" ".join(words)


@st.composite
def _block(draw: st.DrawFn) -> tuple[bytes, bytes]:
    value = draw(_values)
    fault = draw(st.sampled_from([0] * 12 + [-1, 1]))
    length = max(len(value) + fault, 0)
    return b"%d" % length, value + CRLF


@st.composite
def _storage(draw: st.DrawFn) -> bytes:
    name = draw(
        st.sampled_from([b"set", b"set", b"add", b"replace", b"append", b"prepend", b"cas"])
    )
    length, block = draw(_block())
    words = [name, draw(_keys), draw(_flags), draw(_exptimes), length]
    if name == b"cas":
        words.append(draw(_cas_numbers))
    return _line(_mutate(words, draw)) + draw(_noreply) + CRLF + block


@st.composite
def _retrieval(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from([b"get", b"gets", b"gat", b"gats"]))
    keys = draw(st.lists(_keys, min_size=1, max_size=3))
    exptime = [draw(_exptimes)] if name.startswith(b"gat") else []
    return _line(_mutate([name, *exptime, *keys], draw)) + CRLF


@st.composite
def _other_text(draw: st.DrawFn) -> bytes:
    key = draw(_keys)
    words = draw(
        st.sampled_from(
            [
                [b"incr", key, draw(_deltas)],
                [b"decr", key, draw(_deltas)],
                [b"touch", key, draw(_exptimes)],
                [b"delete", key],
                [b"delete", key, b"0"],
            ]
        )
    )
    return _line(_mutate(words, draw)) + draw(_noreply) + CRLF


_rare = st.sampled_from(
    [
        b"version\r\n",
        b"verbosity 0\r\n",
        b"verbosity\r\n",
        b"flush_all\r\n",
        b"flush_all 0 noreply\r\n",
        b"flush_all -1\r\n",
        b"flush_all abc\r\n",
        b"mn\r\n",
        b"me a\r\n",
        b"me Zm9v b\r\n",
        b"bogus\r\n",
        b"\r\n",
        b"\n",
        b"get a\n",
        b" mg a v\r\n",
        b"quit\r\n",
        b"set big 0 0 1048577\r\nx\r\n",
        b"shutdown\r\n",
    ]
)

_letters = {
    b"mg": b"b c f h k l E O q s t u v N R T".split(),
    b"ms": b"b c k q s C E F I M O S T".split(),
    b"md": b"b k q x C E I O T".split(),
    b"ma": b"b c k q t v C D E J M N O T".split(),
}
_numeric_modes = [b"MI", b"MD", b"M+", b"M-", b"MX", b"M"]
_store_modes = [b"ME", b"ME", b"MA", b"MP", b"MR", b"MS", b"MX", b"M", b"MEE"]


@st.composite
def _meta_flag(draw: st.DrawFn, name: bytes) -> bytes:
    letter = draw(st.sampled_from(_letters[name]))
    match letter:
        case b"C" | b"E":
            return letter + draw(_cas_numbers)
        case b"S":
            return letter + draw(st.one_of(_lengths, _bad_words))
        case b"T" | b"N" | b"R":
            return letter + draw(st.one_of(_exptimes, _exptimes, _exptimes, _bad_words))
        case b"D" | b"J":
            return letter + draw(st.one_of(_deltas, _deltas, _bad_words))
        case b"F":
            return letter + draw(st.one_of(_flags, _bad_words))
        case b"M":
            return draw(st.sampled_from(_store_modes if name == b"ms" else _numeric_modes))
        case b"O":
            return letter + b"1" * draw(st.sampled_from([0, 1, 5, 31, 32]))
        case _:
            return letter


@st.composite
def _meta(draw: st.DrawFn) -> bytes:
    name = draw(st.sampled_from([b"mg", b"mg", b"ms", b"ms", b"md", b"ma"]))
    flags = draw(st.lists(_meta_flag(name), max_size=6, unique_by=lambda flag: flag[:1]))
    key = draw(_keys)
    if draw(st.integers(0, 9)) and key not in _BASE64_KEYS:
        flags = [flag for flag in flags if flag != b"b"]
    words = [name, key]
    block = b""
    if name == b"ms":
        length, block = draw(_block())
        words.append(length)
    return _line(_mutate(words + flags, draw)) + CRLF + block


def batches() -> Bytes:
    """Draw up to sixteen commands in one piece; sometimes the last one is cut short."""
    command = st.one_of(_storage(), _retrieval(), _other_text(), _meta(), _meta(), _meta(), _rare)
    whole = st.lists(command, min_size=2, max_size=16).map(b"".join)
    cut = st.tuples(whole, st.integers(1, 6)).map(lambda pair: pair[0][: -pair[1]])
    return st.one_of(whole, whole, whole, cut)
