"""The classic text commands (memcached's doc/protocol.txt up to "Meta Commands").

Each handler takes the words of one command line and returns a `Step`. Replies and their order of
checks are those of memcached 1.6.18, slips included. After a refused command line its data block is
read as the next command; only a value that is too large is discarded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

from userlock_emulator.memcache.cache import Cache, Mode, Refused, Stored
from userlock_emulator.memcache.item import MAX_ITEM_BYTES, Item, item_size_bytes
from userlock_emulator.memcache.listing import Listing
from userlock_emulator.memcache.stats import Stats
from userlock_emulator.memcache.steps import (
    BAD_CHUNK,
    BAD_FORMAT,
    CRLF,
    ERROR,
    MAX_VALUE_LENGTH,
    NON_NUMERIC,
    TOO_LARGE,
    Handler,
    Step,
    line,
)
from userlock_emulator.memcache.wire import MAX_KEY_BYTES, parse_int32, parse_uint32, parse_uint64

VERSION = b"1.6.18"

#: The keys of a `get` that are read before other clients have a turn.
_KEYS_AT_ONCE = 100
_BYTES_AT_ONCE = 16 * 1024
_WORD = re.compile(rb"[^ ]+")
_KEY_TOO_LONG = re.compile(rb"[^ ]{%d}" % (MAX_KEY_BYTES + 1))

_BAD_EXPTIME = b"CLIENT_ERROR invalid exptime argument"
_BAD_DELTA = b"CLIENT_ERROR invalid numeric delta argument"
_BAD_DELETE = BAD_FORMAT + b".  Usage: delete <key> [noreply]"

_STORED = {
    Stored.STORED: b"STORED",
    Stored.NOT_STORED: b"NOT_STORED",
    Stored.EXISTS: b"EXISTS",
    Stored.NOT_FOUND: b"NOT_FOUND",
}


_KEY_REFUSED = Step(reply=(BAD_FORMAT + CRLF,), drop=True)


def is_quiet(words: list[bytes]) -> bool:
    """Return whether the client wants no reply, by the last word."""
    return words[-1] == b"noreply"


class TextCommands:
    """The classic commands on one cache; `handlers` by the name on the wire."""

    def __init__(self, cache: Cache, stats: Stats) -> None:
        self._cache = cache
        self._counters = cache.counters
        self.handlers: dict[bytes, Handler] = {
            b"get": partial(self._get, with_cas=False),
            b"gets": partial(self._get, with_cas=True),
            b"bget": partial(self._get, with_cas=False),
            b"gat": partial(self._get_and_touch, with_cas=False),
            b"gats": partial(self._get_and_touch, with_cas=True),
            b"set": partial(self._store, Mode.SET),
            b"add": partial(self._store, Mode.ADD),
            b"replace": partial(self._store, Mode.REPLACE),
            b"append": partial(self._store, Mode.APPEND),
            b"prepend": partial(self._store, Mode.PREPEND),
            b"cas": partial(self._store, Mode.CAS),
            b"incr": partial(self._arithmetic, increment=True),
            b"decr": partial(self._arithmetic, increment=False),
            b"touch": self._touch,
            b"delete": self._delete,
            b"flush_all": self._flush_all,
            b"cache_memlimit": self._cache_memlimit,
            b"verbosity": self._verbosity,
            b"version": lambda _words: line(b"VERSION " + VERSION),
            b"shutdown": lambda _words: line(b"ERROR: shutdown not enabled"),
            b"quit": lambda _words: Step(flush=True, close=True),
            b"stats": stats.report,
            b"lru_crawler": Listing(cache).answer,
        }

    def _get(self, words: list[bytes], *, with_cas: bool) -> Step:
        if len(words) < 2:
            return line(ERROR)
        return self._values(words[1:], with_cas=with_cas)

    def long_get(self, command_line: bytes) -> Step:
        """Run a `get` or `gets` of very many keys, without splitting the line at once."""
        text = command_line.partition(b"\0")[0]
        name, _, keys = text.strip(b" ").partition(b" ")
        if not keys:
            return line(ERROR)
        return self._long_get_from(0, keys, with_cas=name == b"gets")

    def _long_get_from(self, start: int, keys: bytes, *, with_cas: bool) -> Step:
        """Check the keys in portions, then read them."""
        end = start + _BYTES_AT_ONCE
        if _KEY_TOO_LONG.search(keys, start, end + MAX_KEY_BYTES):
            return _KEY_REFUSED
        if end < len(keys):
            return Step(then=partial(self._long_get_from, end, keys, with_cas=with_cas))
        words = (match[0] for match in _WORD.finditer(keys))
        return self._slice(words, with_cas=with_cas, expires_at=None)

    def _get_and_touch(self, words: list[bytes], *, with_cas: bool) -> Step:
        if len(words) < 2:
            return line(ERROR)
        exptime = parse_int32(words[1])
        if exptime is None:
            return line(_BAD_EXPTIME)
        return self._values(words[2:], with_cas=with_cas, expires_at=self._cache.expiry(exptime))

    def _values(self, keys: list[bytes], *, with_cas: bool, expires_at: int | None = None) -> Step:
        if len(keys) > _KEYS_AT_ONCE and max(map(len, keys)) > MAX_KEY_BYTES:
            # Before any of the slices is sent.
            return _KEY_REFUSED
        return self._slice(iter(keys), with_cas=with_cas, expires_at=expires_at)

    def _slice(self, keys: Iterator[bytes], *, with_cas: bool, expires_at: int | None) -> Step:
        """Return the values of some keys. The step continues with the others."""
        taken = list(islice(keys, _KEYS_AT_ONCE))
        pieces = self._found(taken, with_cas=with_cas, expires_at=expires_at)
        if pieces is None:
            return _KEY_REFUSED
        if len(taken) < _KEYS_AT_ONCE:
            return Step(reply=(*pieces, b"END\r\n"), flush=True)
        return Step(
            reply=tuple(pieces),
            flush=True,
            then=partial(self._slice, keys, with_cas=with_cas, expires_at=expires_at),
        )

    def _found(
        self, keys: Iterable[bytes], *, with_cas: bool, expires_at: int | None
    ) -> list[bytes] | None:
        pieces: list[bytes] = []
        for key in keys:
            if len(key) > MAX_KEY_BYTES:
                return None
            item = self._cache.find(key)
            if expires_at is None:
                self._counters.count_get(hit=item is not None)
            else:
                self._counters.count_touch(hit=item is not None)
            if item is None:
                continue
            self._cache.bump(item)
            if expires_at is not None:
                item.expires_at = expires_at
            cas = b" %d" % item.cas if with_cas else b""
            head = b"VALUE %b %d %d%b\r\n" % (key, item.flags, len(item.value), cas)
            pieces += (head, item.value, CRLF)
        return pieces

    def _store(self, mode: Mode, words: list[bytes]) -> Step:
        required = 6 if mode is Mode.CAS else 5
        if len(words) not in (required, required + 1):
            return line(ERROR)
        quiet = is_quiet(words)
        key = words[1]
        flags = parse_uint32(words[2])
        exptime = parse_int32(words[3])
        length = parse_int32(words[4])
        compare = parse_uint64(words[5]) if mode is Mode.CAS else 0
        if (
            len(key) > MAX_KEY_BYTES
            or flags is None
            or exptime is None
            or length is None
            or compare is None
            or not 0 <= length <= MAX_VALUE_LENGTH
        ):
            return line(BAD_FORMAT, quiet=quiet)
        if item_size_bytes(key, flags, length) > MAX_ITEM_BYTES:
            self._counters.store_too_large += 1
            # A client that meant to overwrite must not read the old value afterwards.
            if mode is Mode.SET and (old := self._cache.find(key)) is not None:
                self._cache.unlink(old)
            refusal = line(TOO_LARGE, quiet=quiet)
            refusal.swallow_bytes = length + len(CRLF)
            return refusal
        item = Item(key, b"", flags, self._cache.expiry(exptime))
        finish = partial(self._finish_store, mode, item, compare, quiet)
        return Step(block_bytes=length + len(CRLF), finish=finish)

    def _finish_store(
        self, mode: Mode, item: Item, compare: int, quiet: bool, block: bytes
    ) -> Step:
        self._counters.cmd_set += 1
        if not block.endswith(CRLF):
            return line(BAD_CHUNK, quiet=quiet)
        item.value = block[: -len(CRLF)]
        return line(_STORED[self._cache.store(mode, item, compare)], quiet=quiet)

    def _arithmetic(self, words: list[bytes], *, increment: bool) -> Step:
        if len(words) not in (3, 4):
            return line(ERROR)
        quiet = is_quiet(words)
        key = words[1]
        if len(key) > MAX_KEY_BYTES:
            return line(BAD_FORMAT, quiet=quiet)
        delta = parse_uint64(words[2])
        if delta is None:
            return line(_BAD_DELTA, quiet=quiet)
        result = self._cache.add_delta(key, delta, increment=increment)
        if result is Refused.NON_NUMERIC:
            return line(NON_NUMERIC, quiet=quiet)
        if not isinstance(result, Item):
            if increment:
                self._counters.incr_misses += 1
            else:
                self._counters.decr_misses += 1
            return line(b"NOT_FOUND", quiet=quiet)
        return line(result.value.rstrip(b" "), quiet=quiet)

    def _touch(self, words: list[bytes]) -> Step:
        if len(words) not in (3, 4):
            return line(ERROR)
        quiet = is_quiet(words)
        key = words[1]
        if len(key) > MAX_KEY_BYTES:
            return line(BAD_FORMAT, quiet=quiet)
        exptime = parse_int32(words[2])
        if exptime is None:
            return line(_BAD_EXPTIME, quiet=quiet)
        item = self._cache.find(key)
        self._counters.count_touch(hit=item is not None)
        if item is None:
            return line(b"NOT_FOUND", quiet=quiet)
        self._cache.bump(item)
        item.expires_at = self._cache.expiry(exptime)
        return line(b"TOUCHED", quiet=quiet)

    def _delete(self, words: list[bytes]) -> Step:
        if not 2 <= len(words) <= 4:
            return line(ERROR)
        key, *rest = words[1:]
        quiet = bool(rest) and is_quiet(words)
        # Old clients send a delay, which may only be 0.
        if rest and rest not in ([b"0"], [b"noreply"], [b"0", b"noreply"]):
            return line(_BAD_DELETE, quiet=quiet)
        if len(key) > MAX_KEY_BYTES:
            return line(BAD_FORMAT, quiet=quiet)
        item = self._cache.find(key)
        if item is None:
            self._counters.delete_misses += 1
            return line(b"NOT_FOUND", quiet=quiet)
        self._counters.delete_hits += 1
        self._cache.unlink(item)
        return line(b"DELETED", quiet=quiet)

    def _flush_all(self, words: list[bytes]) -> Step:
        if len(words) > 3:
            return line(ERROR)
        quiet = is_quiet(words)
        self._counters.cmd_flush += 1
        exptime: int | None = 0
        if len(words) != (2 if quiet else 1):
            exptime = parse_int32(words[1])
        if exptime is None:
            return line(_BAD_EXPTIME, quiet=quiet)
        self._cache.flush(exptime)
        return line(b"OK", quiet=quiet)

    def _cache_memlimit(self, words: list[bytes]) -> Step:
        if len(words) not in (2, 3):
            return line(ERROR)
        quiet = is_quiet(words)
        megabytes = parse_uint32(words[1])
        if megabytes is None:
            return line(ERROR, quiet=quiet)
        if megabytes < 8:
            too_small = b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m"
            return line(too_small, quiet=quiet)
        if megabytes > 1_000_000_000:
            not_bytes = b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes"
            return line(not_bytes, quiet=quiet)
        self._cache.set_memory_limit(megabytes * 1024 * 1024)
        return line(b"OK", quiet=quiet)

    def _verbosity(self, words: list[bytes]) -> Step:
        # Accepted and ignored: this server logs nothing.
        if len(words) not in (2, 3):
            return line(ERROR)
        quiet = is_quiet(words)
        if parse_uint32(words[1]) is None:
            return line(BAD_FORMAT, quiet=quiet)
        return line(b"OK", quiet=quiet)
