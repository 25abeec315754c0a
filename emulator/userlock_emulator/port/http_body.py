"""The body of an HTTP/1.1 request: of a known length, or in chunks."""

import zlib
from typing import Protocol

from userlock_emulator.port.numbers import whole_number

# The limit for the line with a chunk's size, and for a trailing header. Real clients send far less.
_MAX_LINE_BYTES = 1024
_MAX_TRAILERS = 100
_GZIP = 16 + zlib.MAX_WBITS
_HEX = frozenset(b"0123456789abcdefABCDEF")


class BodyError(Exception):
    """The body is malformed or too long. The position of the next request is unknown."""


class BodyTooLongError(BodyError):
    """The body is longer than the caller takes."""


class Stream(Protocol):
    """The part of `asyncio.StreamReader` that is used here."""

    async def readexactly(self, n: int, /) -> bytes:
        """Return that many bytes, or raise EOFError."""

    async def readline(self) -> bytes:
        """Return a line; raise ValueError if it is too long."""


async def read_body(stream: Stream, limit: int, *, coding: str | None, length: str | None) -> bytes:
    """Read a request's whole body, of at most `limit` bytes.

    Args:
        coding: the header Transfer-Encoding.
        length: the header Content-Length.

    Raises:
        BodyError: the body is too long, or its coding is unknown.
        EOFError: the client disconnected in the middle. The received half
            could look like a whole request, and must not be executed.
    """
    if coding is not None:
        if coding.strip().lower() != "chunked":
            raise BodyError(f"the transfer encoding {coding[:40]} is unknown: chunked, or none")
        return await _read_chunks(stream, limit)
    # As a number of any length: a longer one is too long, not malformed.
    size = whole_number(length or "0", most=limit + 1, clip=True)
    if size is None:
        raise BodyError(f"the Content-Length {(length or '')[:40]} is not a number")
    return await stream.readexactly(_checked(size, limit))


def decoded(body: bytes, limit: int, *, coding: str | None) -> bytes:
    """Return a body without its Content-Encoding, of at most `limit` bytes.

    Raises:
        BodyError: it is too long, malformed, or the coding is unknown.
    """
    name = (coding or "identity").strip().lower()
    if name == "identity":
        return body
    if name != "gzip":
        raise BodyError(f"the content encoding {name[:40]} is unknown: gzip, or none")
    unzip = zlib.decompressobj(_GZIP)
    try:
        whole = unzip.decompress(body, limit + 1)
    except zlib.error as error:
        raise BodyError(f"the body is not in gzip: {error}") from None
    _checked(len(whole), limit)
    if not unzip.eof or unzip.unused_data:
        raise BodyError("the body is not one whole file of gzip")
    return whole


async def _read_chunks(stream: Stream, limit: int) -> bytes:
    body = bytearray()
    while size := _chunk_size(await _read_line(stream)):
        body += await stream.readexactly(_checked(len(body) + size, limit) - len(body))
        if await _read_line(stream):
            raise BodyError("a chunk is longer than its announced size")
    # Trailing headers may follow; they are ignored.
    for _ in range(_MAX_TRAILERS):
        if not await _read_line(stream):
            return bytes(body)
    raise BodyError("there are too many trailing headers")


def _chunk_size(line: bytes) -> int:
    # An extension may follow.
    digits = line.partition(b";")[0].strip()
    if not digits or not _HEX.issuperset(digits):
        raise BodyError("a chunk does not begin with its size")
    return int(digits, 16)


def _checked(length: int, limit: int) -> int:
    if length > limit:
        raise BodyTooLongError(f"the body may have at most {limit // 2**20} MiB")
    return length


async def _read_line(stream: Stream) -> bytes:
    try:
        line = await stream.readline()
    except ValueError:
        line = b" " * _MAX_LINE_BYTES
    if len(line) >= _MAX_LINE_BYTES:
        raise BodyError("a line between the chunks is too long")
    if not line.endswith(b"\n"):
        raise EOFError("the client disconnected in the middle of a request")
    return line.rstrip(b"\r\n")
