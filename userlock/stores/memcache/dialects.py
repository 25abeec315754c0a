"""memcached's two protocols, as far as a lease store needs them.

                meta (1.6.12 and later)          text (any)
    create      ms K n T c ME                    add K 0 T n + gets K
    read        mg K c t v                       gets K
    swap        ms K n T C<cas> c                cas K 0 T n <cas> + gets K
    remove      md K C<cas>                      cas K 0 -1 0 <cas>
    append      ms K n MA q + mg K c t v         append K 0 0 n + gets K

The text protocol gives no CAS number for what is written, so a `gets` in the
same packet asks for it. Nor does it tell how long a record has still to live.

Commands are documented in memcached's doc/protocol.txt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from userlock.lock.store import GRACE_SECONDS
from userlock.stores.memcache.wire import Wire, unexpected
from userlock.stores.stream import Refused, number

#: The meta protocol's reply to a change, with the item's CAS number.
_STORED = re.compile(rb"HD c([0-9]{1,20})").fullmatch

_WITHOUT_CAS = "memcached runs without CAS (option -C), so it cannot hold locks"

#: memcached's replies to an append for want of memory. Beyond a megabyte, and where only the
#: longer item finds no room, it replies as if there were no item.
_NO_ROOM = (
    b"SERVER_ERROR out of memory storing object",
    b"SERVER_ERROR object too large for cache",
)


class _WithoutCas(Refused):
    """The stored item has no CAS number."""


class Item(NamedTuple):
    """An item as it was read. `remaining`: its seconds of life, the grace included, if known."""

    record: bytes
    cas: int
    remaining: int | None


class Change(NamedTuple):
    """A swap, for an item of that CAS number. `until`: as memcached takes expirations."""

    key: bytes
    cas: int
    record: bytes
    until: int


class Meta:
    """The meta protocol. Keys, and expirations (`until`), as memcached takes them.

    Attributes:
        meta: whether it is the meta protocol.
        grace_seconds: how much longer than its time to live to keep a record.
    """

    meta = True
    grace_seconds: float = GRACE_SECONDS

    async def create(self, wire: Wire, key: bytes, record: bytes, until: int) -> int | None:
        """Add an item. Its CAS number, 0 if not known; None if there is one already."""
        reply = await wire.ask(b"ms %b %d T%d c ME\r\n%b\r\n" % (key, len(record), until, record))
        stored = _STORED(reply)
        cas = self._cas(reply, b"NS") if stored is None else int(stored[1])
        if cas == 0:
            # Created, but nothing could ever change it safely.
            await wire.line(b"md %b\r\n" % key)
            raise _WithoutCas(_WITHOUT_CAS)
        return cas

    async def read(self, wire: Wire, keys: Sequence[bytes]) -> list[Item | None]:
        """Return the item under each key, in one packet."""
        await wire.send_each([b"mg %b c t v\r\n" % key for key in keys])
        items = [await self._item(wire, await wire.read_line()) for _ in keys]
        wire.finish()
        return items

    async def swap(self, wire: Wire, change: Change) -> int | None:
        """Replace an item. The new CAS number; None if it has changed or gone."""
        key, cas, record, until = change
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
        await wire.send_each(
            [b"ms %b %d MA q\r\n%b\r\n" % (key, len(line), line), b"mg %b c t v\r\n" % key]
        )
        first = await wire.read_line()
        appended = first not in (b"NS", *_NO_ROOM)
        item = await self._item(wire, first if appended else await wire.read_line())
        wire.finish()
        return appended, item

    @staticmethod
    def _cas(reply: bytes, *refusals: bytes) -> int | None:
        """Return the CAS number of what was stored; None for a refusal."""
        stored = _STORED(reply)
        if stored is not None:
            return int(stored[1])
        if reply.partition(b" ")[0] in refusals:
            return None
        raise unexpected(reply)

    @staticmethod
    async def _item(wire: Wire, line: bytes) -> Item | None:
        if line == b"EN":
            return None
        if line[:3] != b"VA ":
            raise unexpected(line)
        cas, remaining = 0, None
        size, *flags = line.split()[1:] or [b""]
        for flag in flags:
            if flag[:1] == b"c":
                cas = number(flag[1:])
            # -1 stands for an item that never ends: none of ours.
            elif flag[:1] == b"t" and flag != b"t-1":
                remaining = number(flag[1:])
        return Item(await wire.read_block(number(size)), cas, remaining)


class Text:
    """The text protocol, as `Meta`: for servers before it, and others that speak no other."""

    meta = False
    grace_seconds = 0.0

    async def create(self, wire: Wire, key: bytes, record: bytes, until: int) -> int | None:
        await wire.send_each(
            [
                b"add %b 0 %d %d\r\n%b\r\n" % (key, until, len(record), record),
                b"gets %b\r\n" % key,
            ]
        )
        try:
            cas = await self._written(wire, record, b"NOT_STORED")
        except _WithoutCas:
            # Created, but nothing could ever change it safely.
            await wire.line(b"delete %b\r\n" % key)
            raise
        wire.finish()
        return cas

    async def read(self, wire: Wire, keys: Sequence[bytes]) -> list[Item | None]:
        await wire.send_each([b"gets %b\r\n" % key for key in keys])
        items = [await self._item(wire) for _ in keys]
        wire.finish()
        return items

    async def swap(self, wire: Wire, change: Change) -> int | None:
        key, cas, record, until = change
        await wire.send_each(
            [
                b"cas %b 0 %d %d %d\r\n%b\r\n" % (key, until, len(record), cas, record),
                b"gets %b\r\n" % key,
            ]
        )
        new = await self._written(wire, record, b"EXISTS", b"NOT_FOUND")
        wire.finish()
        return new

    async def remove(self, wire: Wire, key: bytes, cas: int) -> bool:
        # A negative time to live ends the item at once.
        reply = await wire.line(b"cas %b 0 -1 0 %d\r\n\r\n" % (key, cas))
        return _is_done(reply, b"STORED", b"EXISTS", b"NOT_FOUND")

    async def append(self, wire: Wire, key: bytes, line: bytes) -> tuple[bool, Item | None]:
        await wire.send_each(
            [b"append %b 0 0 %d\r\n%b\r\n" % (key, len(line), line), b"gets %b\r\n" % key]
        )
        appended = _is_done(await wire.read_line(), b"STORED", b"NOT_STORED", *_NO_ROOM)
        item = await self._item(wire)
        wire.finish()
        return appended, item

    async def _written(self, wire: Wire, record: bytes, *refusals: bytes) -> int | None:
        """Return the CAS number of the item just written; None if it was refused."""
        stored = _is_done(await wire.read_line(), b"STORED", *refusals)
        try:
            item = await self._item(wire)
        except _WithoutCas:
            if stored:
                raise
            item = None
        if not stored:
            return None
        # Not known when another client has appended to it already.
        return item.cas if item is not None and item.record == record else 0

    @staticmethod
    async def _item(wire: Wire) -> Item | None:
        line = await wire.read_line()
        if line == b"END":
            return None
        if line[:6] != b"VALUE ":
            raise unexpected(line)
        # VALUE <key> <flags> <bytes> [<cas>]
        fields = line.split()
        if len(fields) < 4:
            raise unexpected(line)
        record = await wire.read_block(number(fields[3]))
        if await wire.read_line() != b"END":
            raise Refused("it answered more than one value")
        cas = number(fields[4]) if len(fields) > 4 else 0
        if not cas:
            raise _WithoutCas(_WITHOUT_CAS)
        return Item(record, cas, None)


Dialect = Meta | Text


def _is_done(reply: bytes, done: bytes, *refusals: bytes) -> bool:
    """Return whether a change was carried out; `Refused` if the reply is in no protocol."""
    if reply == done:
        return True
    if reply in refusals:
        return False
    raise unexpected(reply)
