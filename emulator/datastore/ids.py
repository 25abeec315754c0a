"""Automatic numeric ids.

Ids are spread over 52 bits, as the service's are, so that nobody comes to rely on
their being small or consecutive, and so that they are exact in clients whose
numbers are doubles. They come from a counter sent through a bijection: no id is
handed out twice, not even after a restart, and no table of them is kept. An id that
was reserved, or is in use, is passed over.
"""

from emulator.datastore.rows import Writer

_BITS = 52
_MASK = (1 << _BITS) - 1
# Any odd multiplier is invertible modulo a power of two; this one is the fractional
# part of the golden ratio, which spreads consecutive numbers evenly.
_MULTIPLIER = 0x9E3779B97F4A7 | 1
_HALF = _BITS // 2

# The stored counter runs ahead by this much, so that it is rarely written.
_BLOCK = 1000
_META = "ids_until"


def scatter(number: int) -> int:
    """A bijection on 1 … 2**52 - 1."""
    number = (number * _MULTIPLIER) & _MASK
    number ^= number >> _HALF
    return (number * _MULTIPLIER) & _MASK


class IdAllocator:
    """Hands out ids. Call only inside a commit."""

    def __init__(self) -> None:
        self._next = 0
        self._until = 0

    def allocate(self, writer: Writer) -> int:
        """An id that was never handed out by this database."""
        if self._next == self._until:
            self._next = max(writer.read_meta(_META), 1)
            self._until = self._next + _BLOCK
            writer.write_meta(_META, self._until)
            writer.changed = True
        number = self._next
        self._next += 1
        return scatter(number)

    def rolled_back(self) -> None:
        """The commit failed: start from the stored counter again.

        Part of a block may be skipped, which does no harm.
        """
        self._next = self._until = 0
