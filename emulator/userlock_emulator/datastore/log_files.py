"""LevelDB's log format, in which exports hold their records.

A file is a sequence of blocks of 32 KiB. A block holds fragments, each with a header: a masked
CRC-32C of type and content (4 bytes), the length (2 bytes, little-endian), the type. A record is
one fragment, or a first one, middle ones and a last one. Less than a header at the end of a block
is padding. Source: the documentation of LevelDB, "Log format".
"""

import struct
from collections.abc import Iterator
from typing import BinaryIO

_BLOCK = 32 * 1024
_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


class LogFileError(ValueError):
    """A file is no log, or is damaged. The text names the position."""


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_crc_of_byte(byte) for byte in range(256)]


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


class LogWriter:
    """A writer of records to a new file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        #: The number of bytes written.
        self.size = 0

    def write(self, record: bytes) -> None:
        """Append a record."""
        rest, first = record, True
        while True:
            room = _BLOCK - self.size % _BLOCK
            if room < _HEADER.size:
                self._put(bytes(room))
                room = _BLOCK
            fragment, rest = rest[: room - _HEADER.size], rest[room - _HEADER.size :]
            kinds = (_FULL, _FIRST) if first else (_LAST, _MIDDLE)
            kind = kinds[bool(rest)]
            crc = masked_crc(bytes([kind]) + fragment)
            self._put(_HEADER.pack(crc, len(fragment), kind) + fragment)
            first = False
            if not rest:
                return

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)


def records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records of a file.

    Raises:
        LogFileError: it is damaged, or ends within a record.
    """
    record: list[bytes] | None = None
    position = 0
    while block := file.read(_BLOCK):
        for at, kind, fragment in _fragments(block, position):
            begins, ends = kind in (_FULL, _FIRST), kind in (_FULL, _LAST)
            if begins is (record is not None):
                raise LogFileError(f"at byte {at}: a record begins or goes on at the wrong place")
            record = [fragment] if record is None else [*record, fragment]
            if ends:
                yield b"".join(record)
                record = None
        position += len(block)
    if record is not None:
        raise LogFileError(f"at byte {position}: the file ends within a record")


def _fragments(block: bytes, position: int) -> Iterator[tuple[int, int, bytes]]:
    """Yield the place, the type and the content of each fragment of a block."""
    offset = 0
    while len(block) - offset >= _HEADER.size:
        crc, length, kind = _HEADER.unpack_from(block, offset)
        at = position + offset
        if not crc and not length and not kind and not any(block[offset:]):
            return  # space that was reserved and not used
        begin = offset + _HEADER.size
        fragment = block[begin : begin + length]
        if len(fragment) < length:
            raise LogFileError(f"at byte {at}: the file ends within a record")
        if not _FULL <= kind <= _LAST or masked_crc(bytes([kind]) + fragment) != crc:
            raise LogFileError(f"at byte {at}: the checksum is wrong")
        yield at, kind, fragment
        offset = begin + length
    if offset < len(block) < _BLOCK and any(block[offset:]):
        raise LogFileError(f"at byte {position + offset}: the file ends within a record")
