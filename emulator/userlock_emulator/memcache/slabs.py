"""memcached's size classes with its default settings, which `me` reports."""

from __future__ import annotations

from bisect import bisect_left

_SMALLEST = 96
_LARGEST = 512 * 1024
_GROWTH = 1.25
_ALIGNMENT = 8


def _sizes() -> list[int]:
    sizes: list[int] = []
    size = _SMALLEST
    while size < _LARGEST / _GROWTH:
        size += -size % _ALIGNMENT
        sizes.append(size)
        size = int(size * _GROWTH)
    return [*sizes, _LARGEST]


_SIZES = _sizes()


def slab_class(size_bytes: int) -> int:
    """Return the number of the size class of an item; 1 is the smallest."""
    return min(bisect_left(_SIZES, size_bytes) + 1, len(_SIZES))
