"""The store: items with flags, expiry and CAS numbers, within a memory limit.

Not thread-safe, by design: the server runs all commands of all connections in one thread. Each
command is therefore atomic, as in memcached.

Time is whole seconds on a coarse clock, as in memcached: an item stored for one second lives
between zero and one second. CAS numbers start at 1 and rise by one with each store and each flush,
as in memcached. Tests can therefore compare the two.
"""

from __future__ import annotations

import enum
import time
from collections import OrderedDict
from collections.abc import Callable

from userlock_emulator.memcache.counters import Counters
from userlock_emulator.memcache.item import MAX_ITEM_BYTES, Item
from userlock_emulator.memcache.wire import parse_uint64

DEFAULT_MEMORY_LIMIT_BYTES = 64 * 1024 * 1024

# A time to live above this many seconds is a date (seconds since 1970).
_MAX_RELATIVE_SECONDS = 60 * 60 * 24 * 30
# memcached dates its own start back by this much, so that no stored time is 0.
_START_OFFSET_SECONDS = 62

Clock = Callable[[], float]


def steady_clock() -> Clock:
    """Return a clock: seconds since 1970 that do not jump when the system's clock is set."""
    offset = time.time() - time.monotonic()
    return lambda: time.monotonic() + offset


class Mode(enum.Enum):
    """The ways to store."""

    SET = enum.auto()
    ADD = enum.auto()
    REPLACE = enum.auto()
    APPEND = enum.auto()
    PREPEND = enum.auto()
    CAS = enum.auto()


class Stored(enum.Enum):
    """The outcome of storing."""

    STORED = enum.auto()
    NOT_STORED = enum.auto()
    EXISTS = enum.auto()
    NOT_FOUND = enum.auto()


class Refused(enum.Enum):
    """The reason for refused arithmetic."""

    NOT_FOUND = enum.auto()
    NON_NUMERIC = enum.auto()
    CAS_MISMATCH = enum.auto()


class Cache:
    """All items, least recently used first.

    `clock` gives seconds since 1970 and must never go back. When the items cost more than
    `memory_limit_bytes` of CPython's memory, the least recently used ones are evicted, expired or
    not.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
    ) -> None:
        self._clock = clock or steady_clock()
        self._started_at = int(self._clock()) - _START_OFFSET_SECONDS
        self._items: OrderedDict[bytes, Item] = OrderedDict()
        self._used_bytes = 0
        self._last_cas = 0
        self._flushed_until = 0
        self._memory_limit_bytes = memory_limit_bytes
        self.counters = Counters()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def used_bytes(self) -> int:
        """Return the memory cost of the items, which the limit applies to."""
        return self._used_bytes

    @property
    def memory_limit_bytes(self) -> int:
        """Return the maximal memory cost of the items."""
        return self._memory_limit_bytes

    def set_memory_limit(self, limit_bytes: int) -> None:
        """Change the limit; a lower one evicts at once."""
        self._memory_limit_bytes = limit_bytes
        self._evict()

    @property
    def now(self) -> int:
        """Return whole seconds on the cache's own scale, used for expiry."""
        return int(self._clock()) - self._started_at

    @property
    def uptime_seconds(self) -> int:
        """Return the seconds since the cache was created."""
        return self.now - _START_OFFSET_SECONDS

    @property
    def unix_time(self) -> int:
        """Return the seconds since 1970."""
        return self.now + self._started_at

    def expiry(self, exptime: int) -> int:
        """Convert a client's expiry time to the cache's own seconds.

        0 means never, a value up to thirty days a time to live, a larger one a date. A date in the
        past or a negative value has already expired.
        """
        if exptime == 0:
            return 0
        if exptime < 0:
            return 1
        if exptime > _MAX_RELATIVE_SECONDS:
            return max(exptime - self._started_at, 1)
        return exptime + self.now

    def seconds_left(self, item: Item) -> int:
        """Return the time to live, -1 for ever; memcached's unsigned number for a just expired
        item.
        """
        return -1 if item.expires_at == 0 else (item.expires_at - self.now) % 2**32

    def find(self, key: bytes) -> Item | None:
        """Return the live item of this key, and drop an expired or flushed one."""
        item = self._items.get(key)
        if item is None:
            return None
        if self._is_flushed(item):
            self.counters.get_flushed += 1
        elif item.expires_at != 0 and item.expires_at <= self.now:
            self.counters.get_expired += 1
        else:
            return item
        self.unlink(item)
        return None

    def keys(self) -> list[bytes]:
        """Return the keys of all items, those that have expired included."""
        return list(self._items)

    def peek(self, key: bytes) -> Item | None:
        """Return the live item of this key. Counts and drops nothing."""
        item = self._items.get(key)
        if item is None or self._is_flushed(item):
            return None
        return None if 0 != item.expires_at <= self.now else item

    def bump(self, item: Item) -> None:
        """Record a fetch. The first one only marks the item, as in memcached."""
        if item.fetched:
            item.touched_at = self.now
        item.fetched = True
        self._to_young_end(item)

    def link(self, item: Item) -> None:
        """Insert an item with a new CAS number, replacing any with the same key."""
        old = self._items.get(item.key)
        if old is not None:
            self.unlink(old)
        item.cas = self.next_cas()
        item.touched_at = self.now
        item.linked = True
        self._items[item.key] = item
        self._used_bytes += item.cost_bytes
        self.counters.total_items += 1
        self._evict()

    def unlink(self, item: Item) -> None:
        """Remove an item, if present."""
        if item.linked:
            item.linked = False
            del self._items[item.key]
            self._used_bytes -= item.cost_bytes

    def next_cas(self) -> int:
        """Return a CAS number that was never used before."""
        self._last_cas += 1
        return self._last_cas

    def store(self, mode: Mode, item: Item, compare: int = 0, *, or_stale: bool = False) -> Stored:
        """Store `item` in the given way.

        `compare` is the CAS number that the existing item must have, or 0 for any. With `or_stale`
        a lower number stores too, but marks the item as stale.
        """
        old = self.find(item.key)
        if old is None:
            return self._store_new(mode, item)
        matches = compare == old.cas
        if mode is Mode.ADD:
            old.touched_at = self.now
            self._to_young_end(old)
            return Stored.NOT_STORED
        if mode is Mode.CAS:
            if compare == 0 or not (matches or (or_stale and compare < old.cas)):
                self.counters.cas_badval += 1
                return Stored.EXISTS
            self.counters.cas_hits += 1
            if not matches:
                item.expires_at = old.expires_at
                item.stale = True
                item.win_sent = old.win_sent
        elif mode in (Mode.APPEND, Mode.PREPEND):
            if compare != 0 and not matches:
                return Stored.EXISTS
            joined = _join(mode, old, item)
            if joined.size_bytes > MAX_ITEM_BYTES:
                return Stored.NOT_STORED
            self.link(joined)
            item.cas = joined.cas
            return Stored.STORED
        self.link(item)
        return Stored.STORED

    def _store_new(self, mode: Mode, item: Item) -> Stored:
        if mode is Mode.CAS:
            self.counters.cas_misses += 1
            return Stored.NOT_FOUND
        if mode not in (Mode.SET, Mode.ADD):
            return Stored.NOT_STORED
        self.link(item)
        return Stored.STORED

    def add_delta(
        self, key: bytes, delta: int, *, increment: bool, compare: int = 0
    ) -> Item | Refused:
        """Add to or subtract from a decimal value: addition wraps at 64 bits, subtraction stops at
        0.

        Returns the item that held the number, with its new value and CAS number. As in memcached, a
        shorter number is padded with blanks in place. A longer one, or one whose item a reply still
        refers to, goes to a new item. The returned item is then no longer in the cache.
        """
        item = self.find(key)
        if item is None:
            return Refused.NOT_FOUND
        if not item.value:
            return Refused.NON_NUMERIC
        if compare != 0 and item.cas != compare:
            return Refused.CAS_MISMATCH
        number = parse_uint64(item.value.split(b"\0", 1)[0])
        if number is None:
            return Refused.NON_NUMERIC
        if increment:
            self.counters.incr_hits += 1
            number = (number + delta) % 2**64
        else:
            self.counters.decr_hits += 1
            number = max(number - delta, 0)
        digits = b"%d" % number
        if len(digits) <= len(item.value) and item.readers == 0:
            item.value = digits.ljust(len(item.value))
            item.cas = self.next_cas()
            item.touched_at = self.now
            self._to_young_end(item)
            return item
        self.link(successor := Item(key, digits, item.flags, item.expires_at))
        item.cas = successor.cas
        item.value = digits
        return item

    def mark_stale(self, item: Item) -> None:
        """Keep the item, with a new CAS number, for clients that may use old data."""
        item.stale = True
        item.win_sent = False
        item.cas = self.next_cas()

    def flush(self, exptime: int) -> None:
        """Drop all items now, or those that are not written again before `exptime`.

        A later flush replaces a scheduled one. (In memcached it replaces a past one too, and items
        that were not fetched since reappear.)
        """
        now = self.now
        # Seconds are coarse: a flush that is due one second from now also drops items that are
        # written during the rest of this second.
        self._flushed_until = (self.expiry(exptime) if exptime > 0 else now) - 1
        if self._flushed_until <= now:
            self._last_cas += 1  # memcached uses one up here.
            for item in list(self._items.values()):
                self.unlink(item)

    def _is_flushed(self, item: Item) -> bool:
        return item.touched_at <= self._flushed_until <= self.now

    def _to_young_end(self, item: Item) -> None:
        if item.linked:
            self._items.move_to_end(item.key)

    def _evict(self) -> None:
        while self._used_bytes > self._memory_limit_bytes:
            oldest = next(iter(self._items.values()))
            self.unlink(oldest)
            self.counters.evictions += 1


def _join(mode: Mode, old: Item, item: Item) -> Item:
    value = old.value + item.value if mode is Mode.APPEND else item.value + old.value
    return Item(old.key, value, old.flags, old.expires_at)
