"""Conversations with servers, and the comparison of their replies."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

_TIMEOUT_SECONDS = 10.0
_READ_BYTES = 256 * 1024

# Numbers that depend on the second: the two servers' clocks tick at different moments.
_SECONDS = re.compile(rb"(?<= )(t|l|exp=|la=)(-?\d+)(?= |\r)")
# An expired item's time left, an unsigned number: it depends on the server's start.
_EXPIRED = 2**31


def converse(address: tuple[str, int], sent: bytes) -> bytes:
    """Return the whole reply to `sent` on a connection of its own."""
    received = bytearray()
    with socket.create_connection(address, timeout=_TIMEOUT_SECONDS) as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while data := client.recv(_READ_BYTES):
                received += data
        except ConnectionError:
            # A server that hangs up with input unread resets the connection.
            received += b"<reset>"
    return bytes(received)


@dataclass(frozen=True)
class Answer:
    """A reply without its seconds, which are compared one by one."""

    text: bytes
    seconds: tuple[int, ...]


def read_answer(raw: bytes) -> Answer:
    """Split an answer into what must be equal and what may differ by a second."""
    numbers = (int(match[2]) for match in _SECONDS.finditer(raw))
    return Answer(
        text=_SECONDS.sub(rb"\1#", raw.replace(b"<reset>", b"")),
        seconds=tuple(_EXPIRED if number >= _EXPIRED else number for number in numbers),
    )


def same(left: bytes, right: bytes) -> bool:
    """Return whether two servers answered the same, give or take one tick of the clock."""
    a, b = read_answer(left), read_answer(right)
    return a.text == b.text and all(
        abs(x - y) <= 1 for x, y in zip(a.seconds, b.seconds, strict=True)
    )
