"""memcached's two protocols, as far as a lease store needs them.

                meta (1.6.12 and later)          text (any)
    create      ms K n T c ME                    add K 0 T n + gets K
    read        mg K c t v                       gets K
    swap        ms K n T C<cas> c                cas K 0 T n <cas> + gets K
    remove      md K C<cas>                      cas K 0 -1 0 <cas>
    append      ms K n MA q + mg K c t v         append K 0 0 n + gets K

The text protocol gives no CAS number for what is written, so a `gets` in the
same packet asks for it. Nor does it tell how long a record has still to live.

pymemcache makes the connection (addresses, TLS, options); from then on its
socket is used here directly: replies are counted in bytes, so that nothing that
another client stored can pass for a reply, several commands go in one packet,
and an exchange has a deadline and a bound (`stream`).

Commands are documented in memcached's doc/protocol.txt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import userlock.ids as ids
from userlock.clock import SYSTEM_CLOCK
from userlock.lock.store import GRACE_SECONDS
from userlock.stores.stream import Refused, Stream, number, words

ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
#: Whole commands up to this length fit into one record of TLS, and into memcached's buffer.
_MOST_RECORD_BYTES = 8192
#: The meta protocol's reply to a change, with the item's CAS number.
_STORED = re.compile(rb"HD c([0-9]{1,20})").fullmatch
#: Its head of an item. The time to live of one that never ends, none of ours, is -1. Flags follow
#: if somebody has marked the item as stale.
_VALUE = re.compile(rb"VA ([0-9]{1,20}) c([0-9]{1,20}) t(?:-1|([0-9]{1,20}))(?: [WXZ])*").fullmatch
#: memcached's replies to an append for want of memory. Beyond a megabyte, and where only the
#: longer item finds no room, it replies as if there were no item.
_NO_ROOM = (
    b"SERVER_ERROR out of memory storing object",
    b"SERVER_ERROR object too large for cache",
)


class _WithoutCas(Refused):
    """The stored item has no CAS number."""

    def __init__(self) -> None:
        super().__init__("memcached runs without CAS (option -C), so it cannot hold locks")


class Item(NamedTuple):
    """An item as it was read. `remaining`: its seconds of life, the grace included, if known."""

    record: bytes
    cas: int
    remaining: int | None


class Wire(Stream):
    """One connection, made by a pymemcache client, which then is not used any more."""

    def __init__(
        self, client: Any, timeout: float, now: Callable[[], float] = SYSTEM_CLOCK.now
    ) -> None:
        self.client = client
        # Connects, and sends nothing: all other ways to connect wait for a reply.
        client.set_many({}, noreply=True)
        super().__init__(client.sock, timeout, now)

    def close(self) -> None:
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
        """Send a command whose reply is one line; return the line, `Refused` for an error."""
        reply = await self.ask(wire)
        if reply.startswith(ERRORS):
            raise unexpected(reply)
        return reply


def unexpected(line: bytes) -> Refused:
    """Return the error for a line that is not in the protocol, or for memcached's own."""
    if not line.startswith(ERRORS):
        return Refused(f"it answered {words(line)}")
    text = line if ids.are_plain() else line.partition(b" ")[0]  # the rest may have keys
    return Refused(f"it answered {text[:120].decode('latin-1').strip()!r}")


def speaks_meta(version: bytes) -> bool:
    """Return whether a server of that version has the meta protocol as it is documented.

    1.6.0 to 1.6.11 had other reply codes and another form of `ms`.
    """
    numbers = re.match(rb"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})", version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= (1, 6, 12)


class Meta:
    """The meta protocol. Keys, and expirations (`until`), as memcached takes them."""

    #: How much longer than its time to live to keep a record.
    grace_seconds: float = GRACE_SECONDS
    #: The command that reads the item under a key.
    get = b"mg %b c t v\r\n"

    async def create(self, wire: Wire, key: bytes, record: bytes, until: int) -> int | None:
        """Add an item. Its CAS number, 0 if not known; None if there is one already."""
        reply = await wire.ask(b"ms %b %d T%d c ME\r\n%b\r\n" % (key, len(record), until, record))
        stored = _STORED(reply)
        cas = self._cas(reply, b"NS") if stored is None else int(stored[1])
        if cas == 0:
            # Created, but nothing could ever change it safely.
            await wire.line(b"md %b\r\n" % key)
            raise _WithoutCas
        return cas

    async def swap(self, wire: Wire, key: bytes, cas: int, record: bytes, until: int) -> int | None:
        """Replace an item of that CAS number. The new one; None if it has changed or gone."""
        reply = await wire.line(
            b"ms %b %d T%d c C%d\r\n%b\r\n" % (key, len(record), until, cas, record)
        )
        return self._cas(reply, b"EX", b"NF", b"NS")

    async def remove(self, wire: Wire, key: bytes, cas: int) -> bool:
        """Delete the item if it has that CAS number; return whether it was."""
        reply = await wire.ask(b"md %b C%d\r\n" % (key, cas))
        return reply == b"HD" or _is_done(reply, b"HD", b"EX", b"NF")

    async def append(self, wire: Wire, key: bytes, line: bytes) -> tuple[bool, Item | None]:
        """Add a line; return whether that was done, and the item right afterwards."""
        await wire.send_each([b"ms %b %d MA q\r\n%b\r\n" % (key, len(line), line), self.get % key])
        first = await wire.read_line()
        appended = first not in (b"NS", *_NO_ROOM)
        item = await self.item(wire, first if appended else await wire.read_line())
        wire.finish()
        return appended, item

    async def item(self, wire: Wire, line: bytes) -> Item | None:
        """Return the item in the answer to `get`, which begins with this line."""
        value = _VALUE(line)
        if value is None:
            if line == b"EN":
                return None
            raise unexpected(line)
        size, cas, left = value.groups()
        record = await wire.read_block(int(size))
        return Item(record, int(cas), None if left is None else int(left))

    @staticmethod
    def _cas(reply: bytes, *refusals: bytes) -> int | None:
        stored = _STORED(reply)
        if stored is not None:
            return int(stored[1])
        if reply.partition(b" ")[0] in refusals:
            return None
        raise unexpected(reply)


class Text:
    """The text protocol: for servers before the other, and those that speak no other. As `Meta`."""

    grace_seconds: float = 0.0
    get = b"gets %b\r\n"

    async def create(self, wire: Wire, key: bytes, record: bytes, until: int) -> int | None:
        add = b"add %b 0 %d %d\r\n%b\r\n" % (key, until, len(record), record)
        await wire.send_each([add, self.get % key])
        try:
            return await self._written(wire, record, b"NOT_STORED")
        except _WithoutCas:
            # Created, but nothing could ever change it safely.
            await wire.line(b"delete %b\r\n" % key)
            raise

    async def swap(self, wire: Wire, key: bytes, cas: int, record: bytes, until: int) -> int | None:
        swap = b"cas %b 0 %d %d %d\r\n%b\r\n" % (key, until, len(record), cas, record)
        await wire.send_each([swap, self.get % key])
        return await self._written(wire, record, b"EXISTS", b"NOT_FOUND")

    async def remove(self, wire: Wire, key: bytes, cas: int) -> bool:
        # A negative time to live ends the item at once.
        reply = await wire.line(b"cas %b 0 -1 0 %d\r\n\r\n" % (key, cas))
        return _is_done(reply, b"STORED", b"EXISTS", b"NOT_FOUND")

    async def append(self, wire: Wire, key: bytes, line: bytes) -> tuple[bool, Item | None]:
        append = b"append %b 0 0 %d\r\n%b\r\n" % (key, len(line), line)
        await wire.send_each([append, self.get % key])
        appended = _is_done(await wire.read_line(), b"STORED", b"NOT_STORED", *_NO_ROOM)
        item = await self.item(wire, await wire.read_line())
        wire.finish()
        return appended, item

    async def item(self, wire: Wire, line: bytes) -> Item | None:
        if line == b"END":
            return None
        # VALUE <key> <flags> <bytes> [<cas>]
        fields = line.split()
        if line[:6] != b"VALUE " or len(fields) < 4:
            raise unexpected(line)
        record = await wire.read_block(number(fields[3]))
        if await wire.read_line() != b"END":
            raise Refused("it answered more than one value")
        cas = number(fields[4]) if len(fields) > 4 else 0
        if not cas:
            raise _WithoutCas
        return Item(record, cas, None)

    async def _written(self, wire: Wire, record: bytes, *refusals: bytes) -> int | None:
        """Return the CAS number of the item just written; None if it was refused."""
        stored = _is_done(await wire.read_line(), b"STORED", *refusals)
        item = None
        try:
            item = await self.item(wire, await wire.read_line())
        except _WithoutCas:
            if stored:
                raise
        wire.finish()
        if not stored:
            return None
        # Not known when another client has appended to it already.
        return item.cas if item is not None and item.record == record else 0


def _is_done(reply: bytes, done: bytes, *refusals: bytes) -> bool:
    """Return whether a change was carried out; `Refused` if the reply is in no protocol."""
    if reply == done:
        return True
    if reply in refusals:
        return False
    raise unexpected(reply)
