"""The body of an HTTP/1.1 request: of a known length, or in chunks."""

from io import BufferedIOBase

# The limit for the line with a chunk's size, and for a trailing header. Real clients send far less.
_MAX_LINE_BYTES = 1024
_HEX = frozenset(b"0123456789abcdefABCDEF")


class BodyError(Exception):
    """The body is malformed or too long. The position of the next request is unknown."""


def read_body(
    stream: BufferedIOBase, limit: int, *, coding: str | None, length: str | None
) -> bytes:
    """Read a request's whole body, of at most `limit` bytes.

    Args:
        coding: the header Transfer-Encoding.
        length: the header Content-Length.

    Raises:
        BodyError: the body is too long, or its coding is unknown.
        ConnectionError: the client disconnected in the middle. The received half
            could look like a whole request, and must not be executed.
    """
    if coding is not None:
        if coding.strip().lower() != "chunked":
            raise BodyError(f"the transfer encoding {coding} is unknown: chunked, or none")
        return _read_chunks(stream, limit)
    length = length or "0"
    if not (length.isascii() and length.isdecimal()):
        raise BodyError(f"the Content-Length {length} is not a number")
    return _read(stream, _checked(int(length), limit))


def _read_chunks(stream: BufferedIOBase, limit: int) -> bytes:
    body = bytearray()
    while size := _chunk_size(_read_line(stream)):
        body += _read(stream, _checked(len(body) + size, limit) - len(body))
        if _read_line(stream):
            raise BodyError("a chunk is longer than its announced size")
    # Trailing headers may follow; they are ignored.
    while _read_line(stream):
        pass
    return bytes(body)


def _chunk_size(line: bytes) -> int:
    # An extension may follow.
    digits = line.partition(b";")[0].strip()
    if not digits or not _HEX.issuperset(digits):
        raise BodyError("a chunk does not begin with its size")
    return int(digits, 16)


def _checked(length: int, limit: int) -> int:
    if length > limit:
        raise BodyError(f"the body may have at most {limit // 2**20} MiB")
    return length


def _read_line(stream: BufferedIOBase) -> bytes:
    line = stream.readline(_MAX_LINE_BYTES)
    if len(line) == _MAX_LINE_BYTES:
        raise BodyError("a line between the chunks is too long")
    if not line.endswith(b"\n"):
        raise ConnectionError("the client disconnected in the middle of a request")
    return line.rstrip(b"\r\n")


def _read(stream: BufferedIOBase, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise ConnectionError("the client disconnected in the middle of a request")
    return data
