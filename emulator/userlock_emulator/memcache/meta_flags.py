"""The flags of a meta command: single letters, some with a token (doc/protocol.txt)."""

from __future__ import annotations

from dataclasses import dataclass

from userlock_emulator.memcache.cache import Cache
from userlock_emulator.memcache.wire import decode_key, parse_int32, parse_uint32, parse_uint64

_BAD_FORMAT = b"CLIENT_ERROR bad command line format"
_BAD_TOKEN = b"CLIENT_ERROR bad token in command line format"
_KNOWN = frozenset(b"bNTRlOPLkstcfvhuqFCMJDI")


class FlagError(Exception):
    """A flag that memcached refuses. The message is the reply."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(reply)
        self.reply = reply


@dataclass(slots=True)
class MetaFlags:
    """The parsed flags that change the effect of a command.

    Flags that only request a field in the reply stay in `words`, in the order of the request, which
    is also the order of the reply.
    """

    key: bytes
    words: list[bytes]
    binary_key: bool = False
    quiet: bool = False
    value: bool = False
    no_bump: bool = False
    delays_bump: bool = False
    """Flags that report or change a value that a bump would change: bump afterwards."""
    invalidate: bool = False
    mode: bytes = b""
    expires_at: int | None = None
    vivify_expires_at: int | None = None
    recache_at: int = 0
    client_flags: int = 0
    compare: int | None = None
    delta: int = 1
    initial: int = 0


def parse_flags(cache: Cache, key: bytes, words: list[bytes]) -> MetaFlags:
    """Parse all flags, or raise FlagError.

    A repeated or unknown letter stops the parser at once. Of several bad tokens the last one
    determines the error, because memcached reads on to the end.
    """
    flags = MetaFlags(key, words)
    seen: set[int] = set()
    error: bytes | None = None
    for word in words:
        letter = word[0]
        if letter >= 127 or letter in seen:
            raise FlagError(b"CLIENT_ERROR duplicate flag")
        if letter not in _KNOWN:
            raise FlagError(b"CLIENT_ERROR invalid flag")
        seen.add(letter)
        try:
            _apply(cache, flags, word)
        except FlagError as refused:
            error = refused.reply
        except _UnnamedError:
            error = error or _BAD_FORMAT
    if error is not None:
        raise FlagError(error)
    return flags


class _UnnamedError(Exception):
    """A bad token for which memcached keeps its previous error."""


def _apply(cache: Cache, flags: MetaFlags, word: bytes) -> None:
    token = word[1:]
    match word[:1]:
        case b"b":
            decoded = decode_key(flags.key)
            if decoded is None:
                raise FlagError(b"CLIENT_ERROR error decoding key")
            flags.key = decoded
            flags.binary_key = True
        case b"N":
            flags.delays_bump = True
            flags.vivify_expires_at = _expiry(cache, token)
        case b"T":
            flags.delays_bump = True
            flags.expires_at = _expiry(cache, token)
        case b"R":
            flags.delays_bump = True
            flags.recache_at = _expiry(cache, token)
        case b"l" | b"h":
            flags.delays_bump = True
        case b"v":
            flags.value = True
        case b"u":
            flags.no_bump = True
        case b"q":
            flags.quiet = True
        case b"I":
            flags.invalidate = True
        case b"M":
            if len(token) != 1:
                raise FlagError(b"CLIENT_ERROR incorrect length for M token")
            flags.mode = token
        case b"F":
            client_flags = parse_uint32(token)
            if client_flags is None:
                raise _UnnamedError
            flags.client_flags = client_flags
        case b"C":
            flags.compare = _uint64(token, _BAD_TOKEN)
        case b"J":
            flags.initial = _uint64(token, b"CLIENT_ERROR invalid numeric initial value")
        case b"D":
            flags.delta = _uint64(token, b"CLIENT_ERROR invalid numeric delta value")


def _expiry(cache: Cache, token: bytes) -> int:
    exptime = parse_int32(token)
    if exptime is None:
        raise FlagError(_BAD_TOKEN)
    return cache.expiry(exptime)


def _uint64(token: bytes, error: bytes) -> int:
    number = parse_uint64(token)
    if number is None:
        raise FlagError(error)
    return number
