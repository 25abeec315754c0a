"""The head of an HTTP/1.1 request: the request line and the headers."""

import re
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException, parse_headers
from io import BytesIO
from typing import NamedTuple

from userlock_emulator.port.http_body import Stream

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
_MAX_BYTES = 64 * 1024
_VERSION = re.compile(r"HTTP/1\.([0-9])")


class HeadError(Exception):
    """The head is malformed or too long. The position of the next request is unknown."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Head(NamedTuple):
    """The head of a request.

    Attributes:
        persistent: False for a connection that ends after the reply.
        chunks: True if the client understands a reply in chunks.
    """

    method: str
    path: str
    headers: Message
    persistent: bool
    chunks: bool

    def single(self, name: str) -> str | None:
        """Return a header that may occur once.

        Raises:
            HeadError: it occurs more than once.
        """
        values = self.headers.get_all(name, [])
        if len(values) > 1:
            raise HeadError(HTTPStatus.BAD_REQUEST, f"there is more than one {name}")
        return str(values[0]) if values else None


async def read_head(stream: Stream, begin: bytes = b"") -> Head:
    """Read a request's head, whose first bytes have been read already.

    Raises:
        HeadError: it is malformed, too long, or its method is unknown.
        EOFError: the client disconnected in the middle.
    """
    request_line = await _line(stream, begin, HTTPStatus.REQUEST_URI_TOO_LONG)
    words = request_line.decode("iso-8859-1").split()
    version = _VERSION.fullmatch(words[-1]) if len(words) == 3 else None
    if version is None:
        raise HeadError(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1.1")
    lines: list[bytes] = []
    size = len(request_line)
    while not lines or lines[-1].strip(b"\r\n"):
        lines.append(await _line(stream, b"", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        size += len(lines[-1])
        if size > _MAX_BYTES:
            raise HeadError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the headers are too long: 64 KiB"
            )
    try:
        headers = parse_headers(BytesIO(b"".join(lines)))
    except HTTPException as error:
        raise HeadError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, str(error)) from None
    if headers.defects or headers.get_payload():
        # The parser has ended at a line that is no header. The ones after it would be ignored.
        raise HeadError(HTTPStatus.BAD_REQUEST, "a header has no colon")
    method, path, _ = words
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise HeadError(HTTPStatus.NOT_IMPLEMENTED, f"there is no {method[:40]!r}, but {known}")
    options = {
        option.strip().lower()
        for value in headers.get_all("Connection", [])
        for option in str(value).split(",")
    }
    modern = version[1] != "0"
    persistent = "close" not in options and (modern or "keep-alive" in options)
    return Head(method, path, headers, persistent, modern)


async def _line(stream: Stream, begin: bytes, too_long: HTTPStatus) -> bytes:
    try:
        line = begin if begin.endswith(b"\n") else begin + await stream.readline()
    except ValueError:
        raise HeadError(too_long, "a line of the head is too long") from None
    if not line.endswith(b"\n"):
        raise EOFError("the client disconnected in the middle of a request")
    return line
