"""The meta commands that read: mg, me and mn (memcached's doc/protocol.txt).

Replies, their field order and the order of checks are those of memcached 1.6.18.
"""

from __future__ import annotations

from userlock_emulator.memcache.cache import Cache
from userlock_emulator.memcache.item import Item
from userlock_emulator.memcache.meta_flags import FlagError, MetaFlags, parse_flags
from userlock_emulator.memcache.meta_replies import (
    check_words,
    echo_fields,
    found,
    key_fields,
    opaque_field,
)
from userlock_emulator.memcache.slabs import slab_class
from userlock_emulator.memcache.steps import BAD_FORMAT, Handler, Step, line
from userlock_emulator.memcache.wire import MAX_KEY_BYTES, decode_key, encode_key


class MetaReads:
    """The commands mg, me and mn on one cache; `handlers` by the name on the wire."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._counters = cache.counters
        self.handlers: dict[bytes, Handler] = {
            b"mg": self._get,
            b"me": self._debug,
            b"mn": lambda _words: Step(reply=(b"MN\r\n",), flush=True),
        }

    def _get(self, words: list[bytes]) -> Step:
        refusal = check_words(words, b"CLIENT_ERROR options flags are too long")
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
        return found(fields, item.value if flags.value else None, item)

    def _get_miss(self, flags: MetaFlags) -> Step:
        self._counters.count_get(hit=False)
        try:
            fields = echo_fields(flags)
        except FlagError as refused:
            return line(refused.reply)
        return line(b" ".join([b"EN", *fields]), quiet=flags.quiet)

    def _get_fields(
        self, item: Item, flags: MetaFlags, *, created: bool
    ) -> tuple[list[bytes], bool]:
        # One pass in the order of the request: `t` before `T` reports the old time to live.
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
                    fields.append(opaque_field(word))
                case b"k":
                    fields += key_fields(item.key, binary=item.binary_key)
        return fields, won

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
