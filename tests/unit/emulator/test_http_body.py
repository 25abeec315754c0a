"""Bodies of HTTP requests, whole and in pieces."""

import asyncio

import pytest

from userlock_emulator.port.http_body import BodyError, read_body

LIMIT = 2**20
CHUNKED = {"Transfer-Encoding": "chunked"}


def read(headers: dict[str, str], sent: bytes) -> tuple[bytes, bytes]:
    async def converse() -> tuple[bytes, bytes]:
        stream = asyncio.StreamReader()
        stream.feed_data(sent)
        stream.feed_eof()
        coding, length = headers.get("Transfer-Encoding"), headers.get("Content-Length")
        body = await read_body(stream, LIMIT, coding=coding, length=length)
        return body, await stream.read()

    return asyncio.run(converse())


@pytest.mark.parametrize(
    ("headers", "sent", "body"),
    [
        ({}, b"", b""),
        ({"Content-Length": "3"}, b"abc", b"abc"),
        (CHUNKED, b"0\r\n\r\n", b""),
        (CHUNKED, b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", b"abc0123456789"),
        (CHUNKED, b"3;name=value\r\na\r\n\r\n00\r\nTrailer: x\r\n\r\n", b"a\r\n"),
        ({"Transfer-Encoding": " Chunked", "Content-Length": "1"}, b"1\nx\n0\n\n", b"x"),
        (CHUNKED, b"100000\r\n" + b"x" * LIMIT + b"\r\n0\r\n\r\n", b"x" * LIMIT),
    ],
)
def test_the_body_and_no_more_is_read(headers: dict[str, str], sent: bytes, body: bytes) -> None:
    assert read(headers, sent + b"GET /") == (body, b"GET /")


@pytest.mark.parametrize(
    ("headers", "sent", "complaint"),
    [
        ({"Content-Length": "-1"}, b"", "not a number"),
        ({"Content-Length": "²"}, b"", "not a number"),
        ({"Content-Length": str(LIMIT + 1)}, b"", "at most 1 MiB"),
        ({"Content-Length": "9" * 5000}, b"", "at most 1 MiB"),
        ({"Transfer-Encoding": "gzip, chunked"}, b"", "gzip, chunked is unknown"),
        (CHUNKED, b"x\r\n", "does not begin with its size"),
        (CHUNKED, b"+1\r\na\r\n0\r\n\r\n", "does not begin with its size"),
        (CHUNKED, b"1\r\nab\r\n0\r\n\r\n", "longer than its announced size"),
        (CHUNKED, b"80000\r\n" + b"x" * 2**19 + b"\r\n80001\r\n", "at most 1 MiB"),
        (CHUNKED, b"0" * 2000, "too long"),
        (CHUNKED, b"0\r\n" + b"T: x\r\n" * 101, "too many trailing headers"),
    ],
)
def test_refused_bodies(headers: dict[str, str], sent: bytes, complaint: str) -> None:
    with pytest.raises(BodyError, match=complaint):
        read(headers, sent)


@pytest.mark.parametrize(
    ("headers", "whole"),
    [({"Content-Length": "3"}, b"abc"), (CHUNKED, b"3;x\r\nabc\r\n2\r\nde\r\n0\r\nT: x\r\n\r\n")],
)
def test_half_a_body_is_none(headers: dict[str, str], whole: bytes) -> None:
    for length in range(len(whole)):
        with pytest.raises(EOFError):
            read(headers, whole[:length])
