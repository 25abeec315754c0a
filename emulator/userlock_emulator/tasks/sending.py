"""HTTP/1.1 requests to targets, bounded in all that a target can do.

A target's answer is its status code. Its body is read, up to a bound, and thrown away. Redirects
are not followed. Proxies of the environment are not used. By default only this machine is called:

    127.0.0.0/8 and ::1, localhost and *.localhost, without asking any name server
"""

import asyncio
import contextlib
import functools
import ipaddress
import re
import resource
import socket
import ssl

from userlock_emulator.port.http_body import BodyError, BodyTooLongError, read_body
from userlock_emulator.port.status import Code
from userlock_emulator.tasks.attempts import Answer
from userlock_emulator.tasks.targets import Outgoing, TargetError

#: A longer body ends the connection. The status code counts all the same.
MAX_BODY_BYTES = 1024 * 1024
# Tiny chunks are expensive to read, and the thread is everybody's.
_MAX_CHUNK_LINES = 10_000
_MAX_INTERIM_RESPONSES = 10
_MAX_LINE_BYTES = 64 * 1024
_MOST_IN_FLIGHT = 1000
_MAX_HEAD_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_MAX_RETRY_AFTER = 3600.0
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?\r?\n")
_LOOPBACK = ("127.0.0.1", "::1")


def most_in_flight() -> int:
    """Return the most requests that may be in flight: each needs an open file."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST_IN_FLIGHT
    return max(16, min(_MOST_IN_FLIGHT, files // 2))


async def send(outgoing: Outgoing, *, anywhere: bool) -> Answer:
    """Send a request and return the answer. It does not raise for anything that a target does.

    Args:
        anywhere: call other machines too.
    """
    try:
        addresses = await _addresses(outgoing, anywhere)
        reader, writer = await _connect(outgoing, addresses)
        try:
            # The target may answer before it has read all of this, so nothing waits for it.
            writer.write(outgoing.head + outgoing.body)
            return await _read(reader, outgoing.method)
        finally:
            writer.transport.abort()
    except TargetError as error:
        return Answer(code=Code.PERMISSION_DENIED, text=str(error))
    except (OSError, EOFError, ValueError, BodyError) as error:  # TLS's errors are OSErrors
        text = str(error) or type(error).__name__
        return Answer(code=Code.UNAVAILABLE, text=f"no response: {text[:500]}")


async def _addresses(outgoing: Outgoing, anywhere: bool) -> list[str]:
    host = outgoing.host.lower().removesuffix(".")
    if host == "localhost" or host.endswith(".localhost"):
        return list(_LOOPBACK)
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not anywhere:
            raise _elsewhere(outgoing) from None
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, outgoing.port, type=socket.SOCK_STREAM)
        return [str(each[4][0]) for each in found]
    if not (anywhere or address.is_loopback):
        raise _elsewhere(outgoing)
    return [str(address)]


def _elsewhere(outgoing: Outgoing) -> TargetError:
    return TargetError(
        f"{outgoing.host} is not this machine: to call others, start the emulator with"
        " --tasks-anywhere"
    )


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return the settings of TLS; to read the certificates takes some milliseconds."""
    return ssl.create_default_context()


async def _connect(
    outgoing: Outgoing, addresses: list[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = _tls() if outgoing.tls else None
    failure: OSError = OSError("the host has no address")
    for address in addresses:
        try:
            return await asyncio.open_connection(
                address,
                outgoing.port,
                ssl=context,
                server_hostname=outgoing.host if outgoing.tls else None,
                limit=_MAX_LINE_BYTES,
            )
        except OSError as error:
            failure = error
    raise failure


async def _read(reader: asyncio.StreamReader, method: str) -> Answer:
    for _ in range(_MAX_INTERIM_RESPONSES):
        match = _STATUS_LINE.fullmatch(await reader.readline())
        if match is None:
            raise ValueError("this is no response of HTTP/1.1")
        headers = await _headers(reader)
        status = int(match[1])
        if status >= 200:  # the others precede the response
            break
    else:
        raise ValueError("there are too many interim responses")
    answer = Answer(status=status, retry_after=_seconds(headers.get("retry-after", "")))
    if method != "HEAD" and status not in (204, 304):
        await _skip_body(reader, headers)
    return answer


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    size = 0
    while (line := await reader.readline()).strip():
        size += len(line)
        if size > _MAX_HEAD_BYTES:
            raise ValueError("the headers of the response are too long")
        name, _, value = line.decode("iso-8859-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    if not line.endswith(b"\n"):
        raise EOFError("the target disconnected in the middle of its response")
    return headers


async def _skip_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> None:
    coding, length = headers.get("transfer-encoding"), headers.get("content-length")
    if coding is None and length is not None and length.isdecimal() and length.isascii():
        left = min(int(length[:20]), MAX_BODY_BYTES)
        while left:
            piece = await reader.read(min(left, _READ_BYTES))
            if not piece:
                raise EOFError("the target disconnected in the middle of its response")
            left -= len(piece)
    elif coding is not None:
        with contextlib.suppress(BodyTooLongError):
            await read_body(_Lines(reader), MAX_BODY_BYTES, coding=coding, length=None)
    else:
        left = MAX_BODY_BYTES
        while left > 0 and (piece := await reader.read(_READ_BYTES)):
            left -= len(piece)


class _Lines:
    """A stream with a bound on its lines."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._left = _MAX_CHUNK_LINES

    async def readexactly(self, n: int, /) -> bytes:
        """Return that many bytes, or raise EOFError."""
        return await self._reader.readexactly(n)

    async def readline(self) -> bytes:
        """Return a line; raise BodyTooLongError if there were too many."""
        self._left -= 1
        if self._left < 0:
            raise BodyTooLongError("there are too many chunks")
        return await self._reader.readline()


def _seconds(text: str) -> float:
    """Return the seconds in a Retry-After. A date, the other form, counts as nothing."""
    if not text.isascii() or not text.isdecimal():
        return 0.0
    return min(float(text[:10]), _MAX_RETRY_AFTER)
