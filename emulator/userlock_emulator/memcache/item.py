"""One stored value, and its cost."""

from __future__ import annotations

from dataclasses import dataclass

MAX_ITEM_BYTES = 1024 * 1024

# memcached's item header and CAS field; they count towards the item size limit.
_ITEM_HEADER_BYTES = 48 + 8
_CLIENT_FLAGS_BYTES = 4
# Besides the bytes of key and value: the object, two bytes headers, the CAS
# number, the entry in the table. Measured on CPython 3.11: 372, over 200,000 items.
_PYTHON_BYTES_PER_ITEM = 380


@dataclass(slots=True, eq=False)
class Item:
    """One stored value, compared by identity."""

    key: bytes
    value: bytes
    flags: int = 0
    expires_at: int = 0
    """On the cache's own seconds (`Cache.now`); 0 is never."""
    cas: int = 0
    touched_at: int = 0
    fetched: bool = False
    stale: bool = False
    win_sent: bool = False
    binary_key: bool = False
    linked: bool = False
    readers: int = 0
    """The number of unsent replies that refer to the item."""

    @property
    def size_bytes(self) -> int:
        """Return the size as memcached counts it, its header included."""
        return item_size_bytes(self.key, self.flags, len(self.value))

    @property
    def cost_bytes(self) -> int:
        """Return CPython's memory cost of the item, which the cache's limit applies to."""
        return _PYTHON_BYTES_PER_ITEM + len(self.key) + len(self.value)


def item_size_bytes(key: bytes, flags: int, value_bytes: int) -> int:
    """Return the size memcached would account for such an item."""
    flags_bytes = _CLIENT_FLAGS_BYTES if flags else 0
    # One byte ends the key, two (CRLF) the value.
    return _ITEM_HEADER_BYTES + len(key) + 1 + flags_bytes + value_bytes + 2
