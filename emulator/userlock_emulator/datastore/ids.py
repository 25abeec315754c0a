"""Automatic numeric ids.

Ids are spread over 52 bits, as in the service. Applications therefore cannot rely on small or
consecutive ids, and ids are exact in clients whose numbers are doubles. The allocator maps a
counter through a bijection: no id is allocated twice, not even after a restart, and no table of ids
is kept. Reserved ids and ids in use are skipped.
"""

from userlock_emulator.datastore.writer import Writer

_BITS = 52
_MASK = (1 << _BITS) - 1
# Any odd multiplier is invertible modulo a power of two. This one is the fractional part of the
# golden ratio, which spreads consecutive numbers evenly.
_MULTIPLIER = 0x9E3779B97F4A7 | 1
_HALF = _BITS // 2

# The stored counter is ahead by this much, so that it is rarely written.
_BLOCK = 1000
_META = "ids_until"


def scatter(number: int) -> int:
    """Map a number by a bijection on 1 … 2**52 - 1."""
    number = (number * _MULTIPLIER) & _MASK
    number ^= number >> _HALF
    return (number * _MULTIPLIER) & _MASK


class IdAllocator:
    """An allocator of ids. Call it only inside a commit."""

    def __init__(self) -> None:
        self._next = 0
        self._until = 0

    def allocate(self, writer: Writer) -> int:
        """Return an id that this database has never allocated."""
        if self._next == self._until:
            self._next = max(writer.read_meta(_META), 1)
            self._until = self._next + _BLOCK
            writer.write_meta(_META, self._until)
            writer.changed = True
        number = self._next
        self._next += 1
        return scatter(number)

    def rolled_back(self) -> None:
        """Start from the stored counter again, because the commit failed.

        Part of a block may be skipped, which does no harm.
        """
        self._next = self._until = 0
