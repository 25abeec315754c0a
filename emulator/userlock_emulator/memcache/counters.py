"""The counters of `stats`, under memcached's own names (doc/protocol.txt, "General-purpose")."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Counters:
    """Counters since the start or the last `stats reset`."""

    cmd_get: int = 0
    cmd_set: int = 0
    cmd_flush: int = 0
    cmd_touch: int = 0
    cmd_meta: int = 0
    get_hits: int = 0
    get_misses: int = 0
    get_expired: int = 0
    get_flushed: int = 0
    delete_misses: int = 0
    delete_hits: int = 0
    incr_misses: int = 0
    incr_hits: int = 0
    decr_misses: int = 0
    decr_hits: int = 0
    cas_misses: int = 0
    cas_hits: int = 0
    cas_badval: int = 0
    touch_hits: int = 0
    touch_misses: int = 0
    store_too_large: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    total_connections: int = 0
    total_items: int = 0
    evictions: int = 0

    def count_get(self, *, hit: bool) -> None:
        """Count a key that was looked up to be read."""
        self.cmd_get += 1
        if hit:
            self.get_hits += 1
        else:
            self.get_misses += 1

    def count_touch(self, *, hit: bool) -> None:
        """Count a key that was looked up to be given a new expiry."""
        self.cmd_touch += 1
        if hit:
            self.touch_hits += 1
        else:
            self.touch_misses += 1

    def reset(self) -> None:
        """Set all counters to zero."""
        for field in fields(self):
            setattr(self, field.name, 0)
