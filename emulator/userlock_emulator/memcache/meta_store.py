"""The meta commands that write: ms, md and ma (memcached's doc/protocol.txt).

Replies, their field order and the order of checks are those of memcached 1.6.18.
"""

from __future__ import annotations

from functools import partial

from userlock_emulator.memcache.cache import Cache, Mode, Refused, Stored
from userlock_emulator.memcache.item import MAX_ITEM_BYTES, Item, item_size_bytes
from userlock_emulator.memcache.meta_flags import FlagError, MetaFlags, parse_flags
from userlock_emulator.memcache.meta_replies import (
    MAX_WORDS,
    TOO_MANY_FLAGS,
    check_words,
    echo_fields,
    found,
    key_fields,
    opaque_field,
)
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
from userlock_emulator.memcache.wire import MAX_KEY_BYTES, parse_int32

_BAD_FLAG = b"CLIENT_ERROR invalid or duplicate flag"

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


class MetaWrites:
    """The commands ms, md and ma on one cache; `handlers` by the name on the wire."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._counters = cache.counters
        self.handlers: dict[bytes, Handler] = {
            b"ms": self._set,
            b"md": self._delete,
            b"ma": self._arithmetic,
        }

    def _set(self, words: list[bytes]) -> Step:
        if len(words) < 2:
            return line(ERROR)
        if len(words[1]) > MAX_KEY_BYTES or len(words) == 2:
            return line(BAD_FORMAT)
        if len(words) > MAX_WORDS:
            return line(TOO_MANY_FLAGS)
        length = parse_int32(words[2])
        if length is None or not 0 <= length <= MAX_VALUE_LENGTH:
            return line(BAD_FORMAT)
        # From here on the size is known, and a refused command's data is discarded.
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
                opaque_field(word)
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
        finish = partial(self._finish_set, mode, item, flags)
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
                    fields += key_fields(item.key, binary=item.binary_key)
                case b"c":
                    fields.append(b"c%d" % item.cas)  # 0 unless it was stored
        return line(b" ".join(fields), quiet=flags.quiet and stored)

    def _delete(self, words: list[bytes]) -> Step:
        refusal = check_words(words, TOO_MANY_FLAGS)
        if refusal is not None:
            return refusal
        try:
            flags = parse_flags(self._cache, words[1], words[2:])
        except FlagError:
            return line(_BAD_FLAG)
        try:
            fields = echo_fields(flags)
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

    def _arithmetic(self, words: list[bytes]) -> Step:
        refusal = check_words(words, TOO_MANY_FLAGS)
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
                return found(fields, number, quiet=flags.quiet and not created)
            if result is Refused.NON_NUMERIC:
                return line(NON_NUMERIC)
            if result is Refused.CAS_MISMATCH:
                return line(b" ".join([b"EX", *echo_fields(flags)]))
            if increment:
                self._counters.incr_misses += 1
            else:
                self._counters.decr_misses += 1
            return line(b" ".join([b"NF", *echo_fields(flags)]))
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
                    fields.append(opaque_field(word))
                case b"k":
                    fields += key_fields(flags.key, binary=flags.binary_key)
        return fields
