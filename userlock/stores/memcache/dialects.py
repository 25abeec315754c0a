"""memcached's two protocols, as far as a lease store needs them.

                meta (1.6.12 and later)          text (any)
    create      ms K n T c ME                    add K 0 T n + gets K
    read        mg K c t v                       gets K
    swap        ms K n T C<cas> c                cas K 0 T n <cas> + gets K
    remove      md K C<cas>                      cas K 0 -1 0 <cas>
    append      ms K n MA q + mg K c t v         append K 0 0 n + gets K

Many reads or swaps go in one packet by the meta protocol, one by one by the other.

The text protocol gives no CAS number for what is written, so it is asked for in
the same packet. Nor does it tell how long a record has still to live.

Commands are documented in memcached's doc/protocol.txt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from userlock.lock.store import GRACE_SECONDS
from userlock.stores.memcache.wire import Connection, Refused, check

_WITHOUT_CAS = "memcached runs without CAS (option -C), so it cannot hold locks"

#: How often a record may come between the two commands of an `append`.
_MOST_APPENDS = 5
#: What memcached says to an append for want of memory. Beyond a megabyte, and where only the
#: longer item finds no room, it answers as if there were none.
_NO_ROOM = (
    b"SERVER_ERROR out of memory storing object",
    b"SERVER_ERROR object too large for cache",
)
#: A record that is so long has not just come between the two commands.
_LONG_BYTES = 500_000


class _WithoutCas(Refused):
    """The stored item has no CAS number."""


class Item(NamedTuple):
    """An item as it was read. `remaining` seconds of life, if that is known."""

    record: bytes
    cas: int
    remaining: int | None


class Dialect(Protocol):
    """One of the protocols. All times in seconds; keys as memcached takes them."""

    def create(self, connection: Connection, key: bytes, record: bytes, ttl: float) -> int | None:
        """The CAS number of the new item, 0 if the server does not tell; None if there is one."""
        ...

    def read(self, connection: Connection, key: bytes) -> Item | None:
        """Return the item under `key`."""
        ...

    def swap(
        self, connection: Connection, key: bytes, cas: int, record: bytes, ttl: float
    ) -> int | None:
        """As `create`, for an item of that CAS number; None if it has changed or gone."""
        ...

    def rewrite(
        self, connection: Connection, key: bytes, cas: int, record: bytes, remaining: int
    ) -> int | None:
        """As `swap`, with as much life as the server has just said that the item has."""
        ...

    def reads(self, connection: Connection, keys: Sequence[bytes]) -> Iterator[Item | None]:
        """Several reads, in one packet where that can be: each item, as the answers come."""
        ...

    def swaps(
        self, connection: Connection, swaps: Sequence[tuple[bytes, int, bytes, float]]
    ) -> Iterator[int | None]:
        """Several swaps (key, CAS number, record, time to live), in one packet where that can be:
        what `swap` would give for each, as the answers come."""
        ...

    def remove(self, connection: Connection, key: bytes, cas: int) -> bool:
        """Delete the item if it has that CAS number; return whether it was."""
        ...

    def append(self, connection: Connection, key: bytes, line: bytes) -> Item | None:
        """Return the item after `line` was added to it; None if there is none.

        Without the line, where there is no room for it.
        """
        ...


class Meta:
    """The meta protocol."""

    def create(self, connection: Connection, key: bytes, record: bytes, ttl: float) -> int | None:
        reply = connection.line(
            b"ms %b %d T%d c ME\r\n%b\r\n"
            % (key, len(record), connection.time.until(ttl + GRACE_SECONDS), record)
        )
        if reply[:2] == b"NS":
            return None
        cas = _cas(reply)
        if cas == 0:
            # Created, but nothing could ever change it safely.
            connection.line(b"md %b\r\n" % key)
            raise _WithoutCas(_WITHOUT_CAS)
        return cas

    def read(self, connection: Connection, key: bytes) -> Item | None:
        connection.send(b"mg %b c t v\r\n" % key)
        item = self._item(connection, connection.read_line())
        connection.finish()
        return item

    def swap(
        self, connection: Connection, key: bytes, cas: int, record: bytes, ttl: float
    ) -> int | None:
        until = connection.time.until(ttl + GRACE_SECONDS)
        return self._swapped(connection.line(_swap(key, cas, record, until)))

    def rewrite(
        self, connection: Connection, key: bytes, cas: int, record: bytes, remaining: int
    ) -> int | None:
        return self._swapped(connection.line(_swap(key, cas, record, remaining)))

    def reads(self, connection: Connection, keys: Sequence[bytes]) -> Iterator[Item | None]:
        connection.send(b"".join(b"mg %b c t v\r\n" % key for key in keys))
        for _ in keys:
            yield self._item(connection, connection.read_line())

    def swaps(
        self, connection: Connection, swaps: Sequence[tuple[bytes, int, bytes, float]]
    ) -> Iterator[int | None]:
        connection.send(
            b"".join(
                _swap(key, cas, record, connection.time.until(ttl + GRACE_SECONDS))
                for key, cas, record, ttl in swaps
            )
        )
        for _ in swaps:
            reply = connection.read_line()
            check(reply)
            yield self._swapped(reply)

    @staticmethod
    def _swapped(reply: bytes) -> int | None:
        return None if _is_one_of(reply, b"EX", b"NF", b"NS") else _cas(reply)

    def remove(self, connection: Connection, key: bytes, cas: int) -> bool:
        reply = connection.line(b"md %b C%d\r\n" % (key, cas))
        if reply == b"HD\r\n":
            return True
        return not _is_one_of(reply, b"EX", b"NF") and _is_done(reply, b"HD")

    def append(self, connection: Connection, key: bytes, line: bytes) -> Item | None:
        wire = b"ms %b %d MA q\r\n%b\r\nmg %b c t v\r\n" % (key, len(line), line, key)
        item = None
        for _ in range(_MOST_APPENDS):
            connection.send(wire)
            first = connection.read_line()
            appended = first != b"NS" and first not in _NO_ROOM
            item = self._item(connection, first if appended else connection.read_line())
            connection.finish()
            if appended or not _may_just_have_come(item):
                return item
        return item

    @staticmethod
    def _item(connection: Connection, line: bytes) -> Item | None:
        if line[:2] == b"EN":
            return None
        if line[:3] != b"VA ":
            check(line)
            raise Refused(f"memcached answered {line[:80]!r}")
        cas = remaining = 0
        try:
            _, size, *flags = line.split()
            length = int(size)
            for flag in flags:
                if flag[:1] == b"c":
                    cas = int(flag[1:])
                elif flag[:1] == b"t":
                    remaining = int(flag[1:])
        except ValueError:
            raise Refused(f"memcached answered {line[:80]!r}") from None
        record = connection.read_data(length)
        # -1 stands for an item that never ends: none of ours.
        return Item(record, cas, None if remaining < 0 else remaining)


class Text:
    """The text protocol, for servers before the meta protocol, and others that speak it."""

    def create(self, connection: Connection, key: bytes, record: bytes, ttl: float) -> int | None:
        connection.send(
            b"add %b 0 %d %d\r\n%b\r\ngets %b\r\n"
            % (key, connection.time.until(ttl), len(record), record, key)
        )
        try:
            return self._written(connection, record, b"NOT_STORED")
        except _WithoutCas:
            # Created, but nothing could ever change it safely.
            connection.line(b"delete %b\r\n" % key)
            raise

    def read(self, connection: Connection, key: bytes) -> Item | None:
        connection.send(b"gets %b\r\n" % key)
        item = self._item(connection)
        connection.finish()
        return item

    def swap(
        self, connection: Connection, key: bytes, cas: int, record: bytes, ttl: float
    ) -> int | None:
        connection.send(
            b"cas %b 0 %d %d %d\r\n%b\r\ngets %b\r\n"
            % (key, connection.time.until(ttl), len(record), cas, record, key)
        )
        return self._written(connection, record, b"EXISTS", b"NOT_FOUND")

    def rewrite(
        self, connection: Connection, key: bytes, cas: int, record: bytes, remaining: int
    ) -> int | None:
        return None  # it is never said how much there is

    # In one packet, the answers to many could fill the way back while the rest is still being
    # sent: each comes with its whole record. The servers that need this are old.

    def reads(self, connection: Connection, keys: Sequence[bytes]) -> Iterator[Item | None]:
        return (self.read(connection, key) for key in keys)

    def swaps(
        self, connection: Connection, swaps: Sequence[tuple[bytes, int, bytes, float]]
    ) -> Iterator[int | None]:
        return (self.swap(connection, *each) for each in swaps)

    def remove(self, connection: Connection, key: bytes, cas: int) -> bool:
        # A negative time to live ends the item at once.
        reply = connection.line(b"cas %b 0 -1 0 %d\r\n\r\n" % (key, cas))
        return not _is_one_of(reply, b"EXISTS", b"NOT_FOUND") and _is_done(reply, b"STORED")

    def append(self, connection: Connection, key: bytes, line: bytes) -> Item | None:
        item = None
        for _ in range(_MOST_APPENDS):
            connection.send(b"append %b 0 0 %d\r\n%b\r\ngets %b\r\n" % (key, len(line), line, key))
            reply = connection.read_line()
            if reply not in (b"STORED", b"NOT_STORED", *_NO_ROOM):
                check(reply)
                raise Refused(f"memcached answered {reply[:80]!r}")
            item = self._item(connection)
            connection.finish()
            if reply == b"STORED" or not _may_just_have_come(item):
                return item
        return item

    def _written(self, connection: Connection, record: bytes, *refusals: bytes) -> int | None:
        """Return the CAS number of what was just written; None if it was refused."""
        reply = connection.read_line()
        if reply != b"STORED" and reply not in refusals:
            check(reply)
            raise Refused(f"memcached answered {reply[:80]!r}")
        try:
            item = self._item(connection)
        except _WithoutCas:
            if reply == b"STORED":
                raise
            item = None
        connection.finish()
        if reply != b"STORED":
            return None
        # Not known when somebody has appended to it already.
        return item.cas if item is not None and item.record == record else 0

    @staticmethod
    def _item(connection: Connection) -> Item | None:
        line = connection.read_line()
        if line == b"END":
            return None
        if line[:6] != b"VALUE ":
            check(line)
            raise Refused(f"memcached answered {line[:80]!r}")
        fields = line.split()
        record = connection.read_data(int(fields[3]))
        if connection.read_line() != b"END":
            raise Refused("memcached answered more than one value")
        if len(fields) < 5 or fields[4] == b"0":
            raise _WithoutCas(_WITHOUT_CAS)
        return Item(record, int(fields[4]), None)


def _swap(key: bytes, cas: int, record: bytes, until: int) -> bytes:
    return b"ms %b %d T%d c C%d\r\n%b\r\n" % (key, len(record), until, cas, record)


def _may_just_have_come(item: Item | None) -> bool:
    """Return whether an item may have been created after the append was refused."""
    return item is not None and len(item.record) < _LONG_BYTES


def _cas(reply: bytes) -> int:
    if reply[:4] == b"HD c":
        try:
            return int(reply[4:])
        except ValueError:
            pass
    raise Refused(f"memcached answered {reply[:80]!r}")


def _is_one_of(reply: bytes, *words: bytes) -> bool:
    return reply.startswith(words)


def _is_done(reply: bytes, word: bytes) -> bool:
    """True, if the reply says so; `Refused` if it says something unheard of."""
    if not reply.startswith(word):
        raise Refused(f"memcached answered {reply[:80]!r}")
    return True
