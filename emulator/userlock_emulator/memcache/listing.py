"""`lru_crawler metadump`: the keys of all items, as tools for memcached read them.

Replies are those of memcached 1.6.18: its lines end without a carriage return. Its other crawler
commands are about memory that this server does not have, and get ERROR.
"""

from __future__ import annotations

from functools import partial
from urllib.parse import quote_from_bytes

from userlock_emulator.memcache.cache import Cache
from userlock_emulator.memcache.item import Item
from userlock_emulator.memcache.slabs import slab_class
from userlock_emulator.memcache.steps import ERROR, Step, line

#: The items that are listed before other clients have a turn.
_AT_ONCE = 100
_ALL = (b"all", b"hash")


class Listing:
    """The command on one cache."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def answer(self, words: list[bytes]) -> Step:
        """Answer one `lru_crawler` command line."""
        match words[1:]:
            case [b"metadump", wanted] if wanted in _ALL:
                return self._from(self._cache.keys())
            case [b"metadump", _]:  # memcached takes numbers of its LRU lists, too
                return line(b"BADCLASS invalid class id")
            case _:
                return line(ERROR)

    def _from(self, keys: list[bytes]) -> Step:
        """List some keys. The step continues with the others."""
        now, rest = keys[:_AT_ONCE], keys[_AT_ONCE:]
        items = (self._cache.peek(key) for key in now)
        reply = tuple(self._line(item) for item in items if item is not None)
        if rest:
            return Step(reply=reply, flush=True, then=partial(self._from, rest))
        return Step(reply=(*reply, b"END\r\n"), flush=True)

    def _line(self, item: Item) -> bytes:
        begin = self._cache.unix_time - self._cache.now
        facts = (
            f"key={quote_from_bytes(item.key, safe='')}"
            f" exp={begin + item.expires_at if item.expires_at else -1}"
            f" la={begin + item.touched_at}"
            f" cas={item.cas}"
            f" fetch={'yes' if item.fetched else 'no'}"
            f" cls={slab_class(item.size_bytes)}"
            f" size={item.size_bytes}\n"
        )
        return facts.encode()
