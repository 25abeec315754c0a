"""The meta commands mg, ms, md, ma, me and mn (memcached's doc/protocol.txt).

Replies, their field order and the order of checks are those of memcached 1.6.18.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from emulator.memcache.cache import (
    MAX_ITEM_BYTES,
    Cache,
    Item,
    Mode,
    Refused,
    Stored,
    item_size_bytes,
)
from emulator.memcache.meta_flags import FlagError, MetaFlags, parse_flags
from emulator.memcache.slabs import slab_class
from emulator.memcache.steps import CRLF, Step, line
from emulator.memcache.text import (
    BAD_CHUNK,
    BAD_FORMAT,
    ERROR,
    MAX_VALUE_LENGTH,
    NON_NUMERIC,
    TOO_LARGE,
    Handler,
)
from emulator.memcache.wire import MAX_KEY_BYTES, decode_key, encode_key, parse_int32

_MAX_WORDS = 19
_MAX_OPAQUE_BYTES = 32
_BAD_FLAG = b"CLIENT_ERROR invalid or duplicate flag"
_BAD_OPAQUE = b"CLIENT_ERROR opaque token too long"
_TOO_MANY_FLAGS = b"CLIENT_ERROR options flags too long"

_STORE_MODES = {
    b"": Mode.SET,
    b"E": Mode.ADD,
    b"A": Mode.APPEND,
    b"P": Mode.PREPEND,
    b"R": Mode.REPLACE,
    b"S": Mode.SET,
}
_INCREMENT = {b"": True, b"I": True, b"+": True, b"D": False, b"-": False}
_STORED = {
    Stored.STORED: b"HD",
    Stored.NOT_STORED: b"NS",
    Stored.EXISTS: b"EX",
    Stored.NOT_FOUND: b"NF",
}


class MetaCommands:
    """The meta commands on one cache; `handlers` by the name on the wire."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._counters = cache.counters
        self.handlers: dict[bytes, Handler] = {
            b"mg": self._get,
            b"ms": self._set,
            b"md": self._delete,
            b"ma": self._arithmetic,
            b"me": self._debug,
            b"mn": lambda _words: Step(reply=(b"MN\r\n",), flush=True),
        }

    # -- mg

    def _get(self, words: list[bytes]) -> Step:
        refusal = _check(words, b"CLIENT_ERROR options flags are too long")
        if refusal is not None:
            return refusal
        try:
            flags = parse_flags(self._cache, words[1], words[2:])
        except FlagError as refused:
            return line(refused.reply)
        item = self._cache.find(flags.key)
        if item is not None and not flags.delays_bump and not flags.no_bump:
            self._cache.bump(item)
        created = item is None and flags.vivify_expires_at is not None
        if created:
            item = Item(flags.key, b"")
            self._cache.link(item)
        if item is None:
            return self._get_miss(flags)
        try:
            fields, won = self._get_fields(item, flags, created=created)
        except FlagError as refused:
            return line(refused.reply)
        if item.win_sent:
            fields.append(b"Z")
        if item.stale:
            fields.append(b"X")
            won = won or not item.win_sent
        if won:
            fields.append(b"W")
            item.win_sent = True
        if flags.delays_bump and not flags.no_bump:
            self._cache.bump(item)
        if flags.expires_at is not None:
            self._counters.count_touch(hit=True)
        else:
            self._counters.count_get(hit=True)
        return _found(fields, item.value if flags.value else None, item)

    def _get_miss(self, flags: MetaFlags) -> Step:
        self._counters.count_get(hit=False)
        try:
            fields = _echo(flags)
        except FlagError as refused:
            return line(refused.reply)
        return line(b" ".join([b"EN", *fields]), quiet=flags.quiet)

    def _get_fields(
        self, item: Item, flags: MetaFlags, *, created: bool
    ) -> tuple[list[bytes], bool]:
        # One pass in the order sent: `t` before `T` tells the old time to live.
        fields: list[bytes] = []
        won = False
        for word in flags.words:
            match word[:1]:
                case b"T":
                    item.expires_at = flags.expires_at or 0
                case b"N" if created:
                    item.expires_at = flags.vivify_expires_at or 0
                    won = True
                case b"R":
                    due = item.expires_at != 0 and item.expires_at < flags.recache_at
                    won = won or (due and not created and not item.win_sent)
                case b"s":
                    fields.append(b"s%d" % len(item.value))
                case b"t":
                    fields.append(b"t%d" % self._cache.seconds_left(item))
                case b"c":
                    fields.append(b"c%d" % item.cas)
                case b"f":
                    fields.append(b"f%d" % item.flags)
                case b"l":
                    fields.append(b"l%d" % (self._cache.now - item.touched_at))
                case b"h":
                    fields.append(b"h%d" % item.fetched)
                case b"O":
                    fields.append(_opaque(word))
                case b"k":
                    fields += _key_fields(item.key, binary=item.binary_key)
        return fields, won

    # -- ms

    def _set(self, words: list[bytes]) -> Step:
        if len(words) < 2:
            return line(ERROR)
        if len(words[1]) > MAX_KEY_BYTES or len(words) == 2:
            return line(BAD_FORMAT)
        if len(words) > _MAX_WORDS:
            return line(_TOO_MANY_FLAGS)
        length = parse_int32(words[2])
        if length is None or not 0 <= length <= MAX_VALUE_LENGTH:
            return line(BAD_FORMAT)
        # From here on the size is known, and a refused command's data is swallowed.
        block_bytes = length + len(CRLF)
        try:
            return self._start_set(words, length)
        except FlagError as refused:
            return Step(reply=(refused.reply + CRLF,), swallow_bytes=block_bytes)

    def _start_set(self, words: list[bytes], length: int) -> Step:
        flags = parse_flags(self._cache, words[1], words[3:])
        mode = _STORE_MODES.get(flags.mode)
        if mode is None:
            raise FlagError(b"CLIENT_ERROR invalid mode for ms M token")
        for word in flags.words:
            if word[:1] == b"O":
                _opaque(word)
        if flags.compare is not None and mode in (Mode.SET, Mode.REPLACE):
            mode = Mode.CAS
        if item_size_bytes(flags.key, flags.client_flags, length) > MAX_ITEM_BYTES:
            self._counters.store_too_large += 1
            if (old := self._cache.find(flags.key)) is not None:
                self._cache.unlink(old)
            raise FlagError(TOO_LARGE)
        item = Item(
            flags.key,
            b"",
            flags.client_flags,
            flags.expires_at or 0,
            binary_key=flags.binary_key,
        )
        finish: Callable[[bytes], Step] = partial(self._finish_set, mode, item, flags)
        return Step(block_bytes=length + len(CRLF), finish=finish)

    def _finish_set(self, mode: Mode, item: Item, flags: MetaFlags, block: bytes) -> Step:
        self._counters.cmd_set += 1
        if not block.endswith(CRLF):
            return line(BAD_CHUNK)
        item.value = block[: -len(CRLF)]
        outcome = self._cache.store(mode, item, flags.compare or 0, or_stale=flags.invalidate)
        stored = outcome is Stored.STORED
        fields = [_STORED[outcome]]
        for word in flags.words:
            match word[:1]:
                case b"O":
                    fields.append(word)
                case b"k":
                    fields += _key_fields(item.key, binary=item.binary_key)
                case b"c":
                    fields.append(b"c%d" % (item.cas if stored else 0))
        return line(b" ".join(fields), quiet=flags.quiet and stored)

    # -- md

    def _delete(self, words: list[bytes]) -> Step:
        refusal = _check(words, _TOO_MANY_FLAGS)
        if refusal is not None:
            return refusal
        try:
            flags = parse_flags(self._cache, words[1], words[2:])
        except FlagError:
            return line(_BAD_FLAG)
        try:
            fields = _echo(flags)
        except FlagError as refused:
            return line(refused.reply)
        item = self._cache.find(flags.key)
        if item is None:
            self._counters.delete_misses += 1
            return line(b" ".join([b"NF", *fields]))
        if flags.compare is not None and flags.compare != item.cas:
            self._counters.delete_misses += 1
            return line(b" ".join([b"EX", *fields]))
        if flags.invalidate:
            if flags.expires_at is not None:
                item.expires_at = flags.expires_at
            self._cache.mark_stale(item)
        else:
            self._counters.delete_hits += 1
            self._cache.unlink(item)
        return line(b" ".join([b"HD", *fields]), quiet=flags.quiet)

    # -- ma

    def _arithmetic(self, words: list[bytes]) -> Step:
        refusal = _check(words, _TOO_MANY_FLAGS)
        if refusal is not None:
            return refusal
        try:
            flags = parse_flags(self._cache, words[1], words[2:])
        except FlagError:
            return line(_BAD_FLAG)
        increment = _INCREMENT.get(flags.mode)
        if increment is None:
            return line(b"CLIENT_ERROR invalid mode for ma M token")
        result = self._cache.add_delta(
            flags.key, flags.delta, increment=increment, compare=flags.compare or 0
        )
        created = result is Refused.NOT_FOUND and flags.vivify_expires_at is not None
        if created:
            result = Item(flags.key, b"%d" % flags.initial)
            self._cache.link(result)
        try:
            if isinstance(result, Item):
                fields = self._arithmetic_fields(result, flags, created=created)
                number = result.value.rstrip(b" ") if flags.value else None
                # A created counter is reported even when the client said `q`.
                return _found(fields, number, quiet=flags.quiet and not created)
            if result is Refused.NON_NUMERIC:
                return line(NON_NUMERIC)
            if result is Refused.CAS_MISMATCH:
                return line(b" ".join([b"EX", *_echo(flags)]))
            if increment:
                self._counters.incr_misses += 1
            else:
                self._counters.decr_misses += 1
            return line(b" ".join([b"NF", *_echo(flags)]))
        except FlagError as refused:
            return line(refused.reply)

    def _arithmetic_fields(self, item: Item, flags: MetaFlags, *, created: bool) -> list[bytes]:
        fields: list[bytes] = []
        for word in flags.words:
            match word[:1]:
                case b"c":
                    fields.append(b"c%d" % item.cas)
                case b"t":
                    fields.append(b"t%d" % self._cache.seconds_left(item))
                case b"T":
                    item.expires_at = flags.expires_at or 0
                case b"N" if created:
                    item.expires_at = flags.vivify_expires_at or 0
                case b"O":
                    fields.append(_opaque(word))
                case b"k":
                    fields += _key_fields(flags.key, binary=flags.binary_key)
        return fields

    # -- me

    def _debug(self, words: list[bytes]) -> Step:
        if len(words) < 2 or len(words[1]) > MAX_KEY_BYTES:
            return line(BAD_FORMAT)
        key: bytes | None = words[1]
        if words[2:3] == [b"b"]:
            key = decode_key(words[1])
        if key is None:
            return line(BAD_FORMAT)
        self._counters.cmd_meta += 1
        item = self._cache.find(key)
        if item is None:
            return line(b"EN")
        shown_key = encode_key(item.key) if item.binary_key else item.key
        now = self._cache.now
        facts = (
            # The sign is memcached's own.
            f"exp={now - item.expires_at if item.expires_at else -1}"
            f" la={now - item.touched_at}"
            f" cas={item.cas}"
            f" fetch={'yes' if item.fetched else 'no'}"
            f" cls={slab_class(item.size_bytes)}"
            f" size={item.size_bytes}"
        )
        return line(b"ME " + shown_key + b" " + facts.encode())


def _check(words: list[bytes], too_many: bytes) -> Step | None:
    if len(words) < 2:
        return line(ERROR)
    if len(words[1]) > MAX_KEY_BYTES:
        return line(BAD_FORMAT)
    if len(words) > _MAX_WORDS:
        return line(too_many)
    return None


def _found(
    fields: list[bytes], value: bytes | None, reads: Item | None = None, *, quiet: bool = False
) -> Step:
    if quiet:
        return Step()
    if value is None:
        return Step(reply=(b" ".join([b"HD", *fields]) + CRLF,), reads=reads)
    head = b" ".join([b"VA %d" % len(value), *fields])
    return Step(reply=(head + CRLF, value, CRLF), reads=reads)


def _echo(flags: MetaFlags) -> list[bytes]:
    """The fields that come back without an item: opaque and key."""
    fields: list[bytes] = []
    for word in flags.words:
        match word[:1]:
            case b"O":
                fields.append(_opaque(word))
            case b"k":
                fields += _key_fields(flags.key, binary=flags.binary_key)
    return fields


def _opaque(word: bytes) -> bytes:
    if len(word) > _MAX_OPAQUE_BYTES:
        raise FlagError(_BAD_OPAQUE)
    return word


def _key_fields(key: bytes, *, binary: bool) -> list[bytes]:
    return [b"k" + encode_key(key), b"b"] if binary else [b"k" + key]
