"""One connection to memcached: commands go out, whole replies come in.

pymemcache makes the connection (addresses, TLS, options); from then on its
socket is used here directly: replies are counted in bytes, so that nothing that
another client stored can pass for a reply, several commands go in one packet,
and an exchange has a deadline and a bound (`stream`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pymemcache.exceptions import MemcacheError

import userlock.ids as ids
from userlock.clock import SYSTEM_CLOCK
from userlock.stores.stream import Refused, Stream, words

#: Errors of a command when the server, or the way there, is in trouble.
TROUBLE = (OSError, MemcacheError)
#: Python's and the kernel's errors for a reply that did not come in time.
SLOW = (TimeoutError, BlockingIOError)
#: Whole commands up to this length fit into one record of TLS, and into memcached's buffer.
_MOST_RECORD_BYTES = 8192
_ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")


class Wire(Stream):
    """One connection, used by one caller at a time.

    Args:
        client: a pymemcache client. It makes the connection, and then is not used any more.
        timeout: for an exchange, in seconds. The first one is the question for the version.
        now: the time, for deadlines.

    Attributes:
        client: the pymemcache client.
    """

    def __init__(
        self,
        client: Any,
        timeout: float,
        now: Callable[[], float] = SYSTEM_CLOCK.now,
    ) -> None:
        self.client = client
        # Connects, and sends nothing: all other ways to connect wait for a reply.
        client.set_many({}, noreply=True)
        super().__init__(client.sock, timeout, now)

    async def version(self) -> bytes:
        """Ask the server for its version."""
        answer = await self.line(b"version\r\n")
        word, _, version = answer.partition(b" ")
        if word != b"VERSION":
            raise unexpected(answer)
        return version

    def close(self) -> None:
        """Close it. It cannot be used again."""
        super().close()
        self.client.close()

    async def send_each(self, commands: Sequence[bytes]) -> None:
        """Send several commands, in one packet where that can be done.

        Not over TLS. memcached (1.6.18) waits for the socket while commands that
        have come wait in the TLS library: those behind a long value, in one
        record of TLS with its end, until another packet comes.
        """
        if self.plain:
            await self.send(b"".join(commands))
            return
        packet = b""
        for command in commands:
            if packet and len(packet) + len(command) > _MOST_RECORD_BYTES:
                await self.send(packet)
                packet = b""
            packet += command
        await self.send(packet)

    async def line(self, wire: bytes) -> bytes:
        """Send a command whose reply is one line, and return the line without its end.

        Raises:
            OSError: trouble on the way; the command may have been carried out.
            Refused: the server answered with an error.
        """
        reply = await self.ask(wire)
        if reply.startswith(_ERRORS):
            check(reply)
        return reply


def is_a_break(error: BaseException) -> bool:
    """Return whether the connection has ended, so that the command can be sent on another."""
    return isinstance(error, TROUBLE) and not isinstance(error, SLOW)


def check(line: bytes) -> None:
    """Raise if this is one of memcached's error lines."""
    if line.startswith(_ERRORS):
        raise Refused(f"it answered {_shown_error(line)}")


def unexpected(line: bytes) -> Refused:
    """Return the error for a line that is not in the protocol, or for memcached's own."""
    check(line)
    return Refused(f"it answered {words(line)}")


def _shown_error(line: bytes) -> str:
    """Return an error line for a message; its first word alone if ids are hidden."""
    text = line if ids.are_plain() else line.partition(b" ")[0]
    return repr(text[:120].decode("latin-1").strip())


def speaks_meta(version: bytes) -> bool:
    """Return whether a server of that version has the meta protocol as it is documented.

    1.6.0 to 1.6.11 had other reply codes and another form of `ms`.
    """
    numbers = re.match(rb"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})", version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= (1, 6, 12)
