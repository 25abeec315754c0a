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

import abc
import re
from typing import NamedTuple

from userlock.lock.store import GRACE_SECONDS
from userlock.stores.memcache.wire import Wire, unexpected
from userlock.stores.stream import Refused, number

#: The meta protocol's reply to a change, with the item's CAS number.
_STORED = re.compile(rb"HD c([0-9]{1,20})").fullmatch
#: Its head of an item. The time to live of one that never ends, none of ours, is -1. Flags follow
#: if somebody has marked the item as stale.
_VALUE = re.compile(rb"VA ([0-9]{1,20}) c([0-9]{1,20}) t(?:-1|([0-9]{1,20}))(?: [WXZ])*").fullmatch

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


class Dialect(abc.ABC):
    """One of the protocols. Keys, and expirations (`until`), as memcached takes them.

    Attributes:
        meta: whether it is the meta protocol.
        grace_seconds: how much longer than its time to live to keep a record.
        get: the command that reads the item under a key.
    """

    meta: bool
    grace_seconds: float
    get: bytes

    async def read(self, wire: Wire, key: bytes) -> Item | None:
        """Return the item under a key."""
        await wire.send(self.get % key)
        item = await self.item(wire, await wire.read_line())
        wire.finish()
        return item

    @abc.abstractmethod
    async def item(self, wire: Wire, line: bytes) -> Item | None:
        """Return the item in the answer to `get`, which begins with this line."""

    @abc.abstractmethod
    async def create(self, wire: Wire, key: bytes, record: bytes, until: int) -> int | None:
        """Add an item. Its CAS number, 0 if not known; None if there is one already."""

    @abc.abstractmethod
    async def swap(self, wire: Wire, change: Change) -> int | None:
        """Replace an item. The new CAS number; None if it has changed or gone."""

    @abc.abstractmethod
    async def remove(self, wire: Wire, key: bytes, cas: int) -> bool:
        """Delete the item if it has that CAS number; return whether it was."""

    @abc.abstractmethod
    async def append(self, wire: Wire, key: bytes, line: bytes) -> tuple[bool, Item | None]:
        """Add a line; return whether that was done, and the item right afterwards."""


class Meta(Dialect):
    """The meta protocol."""

    meta = True
    grace_seconds = GRACE_SECONDS
    get = b"mg %b c t v\r\n"

    async def create(self, wire: Wire, key: bytes, record: bytes, until: int) -> int | None:
        reply = await wire.ask(b"ms %b %d T%d c ME\r\n%b\r\n" % (key, len(record), until, record))
        stored = _STORED(reply)
        cas = self._cas(reply, b"NS") if stored is None else int(stored[1])
        if cas == 0:
            # Created, but nothing could ever change it safely.
            await wire.line(b"md %b\r\n" % key)
            raise _WithoutCas(_WITHOUT_CAS)
        return cas

    async def swap(self, wire: Wire, change: Change) -> int | None:
        key, cas, record, until = change
        reply = await wire.line(
            b"ms %b %d T%d c C%d\r\n%b\r\n" % (key, len(record), until, cas, record)
        )
        return self._cas(reply, b"EX", b"NF", b"NS")

    async def remove(self, wire: Wire, key: bytes, cas: int) -> bool:
        reply = await wire.ask(b"md %b C%d\r\n" % (key, cas))
        return reply == b"HD" or _is_done(reply, b"HD", b"EX", b"NF")

    async def append(self, wire: Wire, key: bytes, line: bytes) -> tuple[bool, Item | None]:
        await wire.send_each([b"ms %b %d MA q\r\n%b\r\n" % (key, len(line), line), self.get % key])
        first = await wire.read_line()
        appended = first not in (b"NS", *_NO_ROOM)
        item = await self.item(wire, first if appended else await wire.read_line())
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

    async def item(self, wire: Wire, line: bytes) -> Item | None:
        value = _VALUE(line)
        if value is None:
            if line == b"EN":
                return None
            raise unexpected(line)
        size, cas, left = value.groups()
        record = await wire.read_block(int(size))
        return Item(record, int(cas), None if left is None else int(left))


class Text(Dialect):
    """The text protocol: for servers before the other, and those that speak no other."""

    meta = False
    grace_seconds = 0.0
    get = b"gets %b\r\n"

    async def create(self, wire: Wire, key: bytes, record: bytes, until: int) -> int | None:
        await wire.send_each(
            [
                b"add %b 0 %d %d\r\n%b\r\n" % (key, until, len(record), record),
                self.get % key,
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

    async def swap(self, wire: Wire, change: Change) -> int | None:
        key, cas, record, until = change
        await wire.send_each(
            [
                b"cas %b 0 %d %d %d\r\n%b\r\n" % (key, until, len(record), cas, record),
                self.get % key,
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
            [b"append %b 0 0 %d\r\n%b\r\n" % (key, len(line), line), self.get % key]
        )
        appended = _is_done(await wire.read_line(), b"STORED", b"NOT_STORED", *_NO_ROOM)
        item = await self.item(wire, await wire.read_line())
        wire.finish()
        return appended, item

    async def _written(self, wire: Wire, record: bytes, *refusals: bytes) -> int | None:
        """Return the CAS number of the item just written; None if it was refused."""
        stored = _is_done(await wire.read_line(), b"STORED", *refusals)
        try:
            item = await self.item(wire, await wire.read_line())
        except _WithoutCas:
            if stored:
                raise
            item = None
        if not stored:
            return None
        # Not known when another client has appended to it already.
        return item.cas if item is not None and item.record == record else 0

    async def item(self, wire: Wire, line: bytes) -> Item | None:
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


def _is_done(reply: bytes, done: bytes, *refusals: bytes) -> bool:
    """Return whether a change was carried out; `Refused` if the reply is in no protocol."""
    if reply == done:
        return True
    if reply in refusals:
        return False
    raise unexpected(reply)
