"""Connections to one memcached server: its two protocols, and its time.

                meta (1.6.12 and later)          text (any)
    create      ms K n T c ME                    add K 0 T n + gets K
    read        mg K c t v                       gets K
    swap        ms K n T C<cas> c                cas K 0 T n <cas> + gets K
    remove      md K C<cas>                      cas K 0 -1 0 <cas>
    append      ms K n MA + mg K c t v           append K 0 0 n + gets K

The text protocol gives no CAS number for what is written, so a `gets` in the same packet asks for
it; nor does it tell how long a record has still to live. Source: memcached's doc/protocol.txt.

pymemcache makes the connection (addresses, TLS), whose socket is then used directly: replies are
counted in bytes, so nothing that another client stored can pass for a reply, several commands go in
one packet, and an exchange has a deadline and a bound (`stream`).

Connections are numbered, and a version knows the latest one of its time. One that is not later
proves that the server has not been restarted since (a restart cuts every connection), so CAS
numbers still mean what they meant.

Expiration dates. memcached counts whole seconds, and one of its threads sets that clock once a
second: while it runs, the clock is behind by less than two seconds. After a stop (SIGSTOP, a
machine that was paused or migrated) other threads carry out the commands in the sockets before
that one has had its turn. "For 60 seconds" then counts from when the server was stopped:

    we                      memcached                       others
                            12:00:00, stopped
    12:00:30
    ms k T60 … ───────────▶ goes on; by its clock it is
                            12:00:00, so until 12:01:00
                            sets its clock: 12:00:30
    ours until 12:01:30     12:01:00: gone
                            ms k … ◀─────────────────────── theirs, half a minute too early

So commands carry a date in the server's own time: an item that is stored late ends when it would
have ended anyway, and one that comes after its date is not stored.

Each connection asks for the server's time (`stats`) when it is made, and from time to time. The
answer is at most two seconds old, or older if the server has just been stopped, so the latest
possible time counts. A server whose time is far behind has been stopped, or its clock stood still
while its machine was suspended. A new connection decides which: the thread that accepts it is the
one that sets the clock.
"""

from __future__ import annotations

import itertools
import math
import re
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pymemcache.client.base import Client

import userlock.ids as ids
from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import GRACE_SECONDS, RecordRefused, StoreUnavailable
from userlock.signals import raise_interrupt
from userlock.stores.address import Address, joined
from userlock.stores.pool import SLOW, NotHere, Pool
from userlock.stores.stream import Refused, Stream, TooLong, number, words
from userlock.waits import run

_ERRORS = (b"ERROR", b"CLIENT_ERROR", b"SERVER_ERROR")
#: Replies of the meta protocol to a change: the item's CAS number, or a refusal.
_CHANGED = re.compile(rb"HD c([0-9]{1,20})|(?:EX|NF|NS)(?: .*)?").fullmatch
#: Its head of an item. One that never ends, none of ours, has -1 second to live. Flags follow if
#: somebody has marked the item as stale.
_VALUE = re.compile(rb"VA ([0-9]{1,20}) c([0-9]{1,20}) t(?:-1|([0-9]{1,20}))(?: [WXZ])*").fullmatch
#: The text protocol's.
_WRITTEN = (b"STORED", b"NOT_STORED", b"EXISTS", b"NOT_FOUND")
#: memcached's replies to an append for want of memory. Beyond a megabyte, and where only the
#: longer item finds no room, it replies as if there were no item.
_NO_ROOM = (
    b"SERVER_ERROR out of memory storing object",
    b"SERVER_ERROR object too large for cache",
)
#: How often an item may appear between the two commands of an `append`; one of such a length has
#: not just appeared.
_MOST_APPENDS = 5
_LONG_BYTES = 500_000
#: In seconds: how old a running server's time is at most (the fraction that it does not count, a
#: second until it counts the next one, and something for a thread that is late); for how long an
#: answer is good, while clocks drift by milliseconds; by how much two answers differ at most.
_MOST_BEHIND = 2.1
_GOOD_FOR = 10.0
_MOST_DIFFERENCE = 2.5
#: memcached reads less than the first as a duration (up to 30 days), or a server's clock was never
#: set; it cannot count beyond the last.
_FIRST_DATE, _LAST_DATE = 1 << 30, (1 << 31) - 1


class WithoutCas(Refused):
    """An item was stored without a CAS number, so nothing could ever change it safely."""

    def __init__(self) -> None:
        super().__init__("memcached runs without CAS (option -C), so it cannot hold locks")


class Item(NamedTuple):
    """An item as it was read. `remaining`: its seconds of life, the grace included, if known."""

    record: bytes
    cas: int
    remaining: int | None


class Meta:
    """The meta protocol. It takes keys, and expirations (`until`), as memcached does."""

    #: How much longer than its time to live to keep a record.
    grace_seconds: float = GRACE_SECONDS
    #: Commands; and replies, of which the first one says that it was done.
    get = b"mg %b c t v\r\n"
    append, appended = b"ms %b %d MA\r\n%b\r\n", (b"HD", b"NS", *_NO_ROOM)
    remove, removed = b"md %b C%d\r\n", (b"HD", b"EX", b"NF")

    async def create(self, wire: Connection, key: bytes, record: bytes, until: int) -> int | None:
        """Add an item. Its CAS number, 0 if not known; None if there is one already."""
        reply = await wire.ask(b"ms %b %d T%d c ME\r\n%b\r\n" % (key, len(record), until, record))
        created = _CHANGED(reply)  # not by `_changed`: a call less for each lock
        if created is None:
            raise unexpected(reply)
        if created[1] == b"0":
            raise WithoutCas
        return None if created[1] is None else int(created[1])

    async def swap(
        self, wire: Connection, key: bytes, cas: int, record: bytes, until: int
    ) -> int | None:
        """Replace an item of that CAS number. The new one; None if it has changed or gone."""
        swap = b"ms %b %d T%d c C%d\r\n%b\r\n" % (key, len(record), until, cas, record)
        return _changed(await wire.ask(swap))

    async def item(self, wire: Connection) -> Item | None:
        """Return the item in the answer to `get`."""
        line = await wire.read_line()
        value = _VALUE(line)
        if value is None:
            if line == b"EN":
                return None
            raise unexpected(line)
        size, cas, left = value.groups()
        record = await wire.read_block(int(size))
        return Item(record, int(cas), None if left is None else int(left))


class Text:
    """The text protocol: for servers before the other, and those that speak no other. As `Meta`."""

    grace_seconds: float = 0.0
    get = b"gets %b\r\n"
    append, appended = b"append %b 0 0 %d\r\n%b\r\n", (b"STORED", b"NOT_STORED", *_NO_ROOM)
    # A negative time to live ends the item at once.
    remove, removed = b"cas %b 0 -1 0 %d\r\n\r\n", (b"STORED", b"EXISTS", b"NOT_FOUND")

    async def create(self, wire: Connection, key: bytes, record: bytes, until: int) -> int | None:
        add = b"add %b 0 %d %d\r\n%b\r\n" % (key, until, len(record), record)
        return await self._write(wire, key, add, record)

    async def swap(
        self, wire: Connection, key: bytes, cas: int, record: bytes, until: int
    ) -> int | None:
        swap = b"cas %b 0 %d %d %d\r\n%b\r\n" % (key, until, len(record), cas, record)
        return await self._write(wire, key, swap, record)

    async def item(self, wire: Connection) -> Item | None:
        line = await wire.read_line()
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
            raise WithoutCas
        return Item(record, cas, None)

    async def _write(
        self, wire: Connection, key: bytes, command: bytes, record: bytes
    ) -> int | None:
        """Return the CAS number of the item just written; None if it was refused."""
        await wire.send_each([command, self.get % key])
        stored = is_first(await wire.read_line(), _WRITTEN)
        item = None
        try:
            item = await self.item(wire)
        except WithoutCas:
            if stored:
                raise
        wire.finish()
        if not stored:
            return None
        # Not known when another client has appended to it already.
        return item.cas if item is not None and item.record == record else 0


def is_first(reply: bytes, replies: tuple[bytes, ...]) -> bool:
    """Return whether it is the first one of some replies; `Refused` if it is none of them."""
    if reply not in replies:
        raise unexpected(reply)
    return reply == replies[0]


def _changed(reply: bytes) -> int | None:
    """Return the CAS number in the meta protocol's reply to a change; None if it was refused."""
    changed = _CHANGED(reply)
    if changed is None:
        raise unexpected(reply)
    return None if changed[1] is None else int(changed[1])


_META, _TEXT = Meta(), Text()


class Connection(Stream):
    """One connection, made by a pymemcache client, which then is not used any more.

    `now` must go on while the machine is suspended.
    """

    def __init__(
        self, client: Any, timeout: float, now: Callable[[], float] = SYSTEM_CLOCK.now
    ) -> None:
        self.client = client
        # Connects, and sends nothing: all other ways to connect wait for a reply.
        client.set_many({}, noreply=True)
        super().__init__(client.sock, timeout, now)
        self.number = 0  # the later, the higher
        self.dialect: Meta | Text = _META
        #: When the server started, by its clock; its time less ours, at most. None: it did not say.
        self.started: int | None = None
        self.ahead: float | None = None
        self.good_until = math.inf  # what it said of its time

    def close(self) -> None:
        super().close()
        self.client.close()

    async def send_each(self, commands: Sequence[bytes]) -> None:
        """Send several commands, in one packet where that can be done.

        Not over TLS. memcached (1.6.18) waits for the socket while commands that have come wait in
        the TLS library: those behind a long value, in one record of TLS with its end.
        """
        for packet in [b"".join(commands)] if self.plain else commands:
            await self.send(packet)

    async def read(self, key: bytes) -> Item | None:
        await self.send(self.dialect.get % key)
        item = await self.dialect.item(self)
        self.finish()
        return item

    async def append(self, key: bytes, line: bytes) -> Item | None:
        """Add a line to an item; return the item right afterwards, None if there is none."""
        dialect = self.dialect
        for _ in range(_MOST_APPENDS):
            await self.send_each([dialect.append % (key, len(line), line), dialect.get % key])
            appended = is_first(await self.read_line(), dialect.appended)
            item = await dialect.item(self)
            self.finish()
            # An item may appear after the append was refused, before it is read.
            if appended or item is None or len(item.record) > _LONG_BYTES:
                break
        return item

    async def until(self, ttl_seconds: float) -> int:
        """Return the expiration of a record that is stored now, to live that long or longer.

        It is a date, or seconds where the server does not tell its time. `NotHere` if this
        connection cannot know it.
        """
        if self.began >= self.good_until:
            try:
                await self.ask_for_time()
            except SLOW:
                raise
            except OSError as error:
                raise_interrupt(error)
                raise NotHere("it ended when it was asked for the time", sent=False) from error
            self.begin()
        if self.ahead is not None:
            date = int(self.began + self.ahead + ttl_seconds + self.dialect.grace_seconds) + 1
            if date <= _LAST_DATE:
                return date
        return math.ceil(ttl_seconds + self.dialect.grace_seconds + _MOST_BEHIND)

    async def ask_for_time(self) -> None:
        """Ask the server for its time; `NotHere` if it is far behind what it was."""
        asked_at = self._now()
        await self.send(b"stats\r\n")
        says: dict[bytes, bytes] = {}
        while (line := await self.read_line()) != b"END" and not line.startswith(_ERRORS):
            name, _, value = line.removeprefix(b"STAT ").partition(b" ")
            if not line.startswith(b"STAT "):
                raise unexpected(line)
            says[name] = value
        self.finish()
        time = number(says.get(b"time", b"0"))
        if time < _FIRST_DATE:
            self.ahead, self.good_until = None, math.inf
            return
        if b"uptime" in says:  # both count from one clock: always the same difference
            self.started = time - number(says[b"uptime"])
        ahead = time + _MOST_BEHIND - asked_at
        if self.ahead is not None:
            if ahead < self.ahead - _MOST_DIFFERENCE:
                raise NotHere("the server's time is far behind what it was", sent=False)
            ahead = max(ahead, self.ahead)
        self.ahead, self.good_until = ahead, asked_at + _GOOD_FOR


class Connections(Pool[Connection]):
    """The connections of this process to one server; for the arguments see `MemcacheStore`."""

    breaks = (OSError,)
    trouble = (OSError, Refused)

    def __init__(
        self,
        server: tuple[str, int] | str,
        *,
        connect_timeout: float,
        timeout: float,
        protocol: str | None = None,
        via_proxy: bool = False,
        tls: ssl.SSLContext | None = None,
        clock: Clock = SYSTEM_CLOCK,
        most: int = 32,
    ) -> None:
        super().__init__(most=most)
        self.address = server if isinstance(server, str) else joined(*server)
        self._server = server if isinstance(server, str) else Address(*server)
        self.tells_time = not via_proxy
        self._numbers = itertools.count(1)
        self.latest = 0  # the number of the latest connection
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._protocol = protocol
        self._via_proxy = via_proxy
        self._tls = tls
        self._clock = clock

    async def connect(self, timeout: float | None) -> Connection:
        """Return a new connection. With a timeout of its own it does not ask for the time."""
        patience = self._timeout if timeout is None else timeout
        client = self._client(patience)
        try:
            # One deadline for its version and its time.
            connection = Connection(client, patience, self._clock.now)
            answer = await connection.ask(b"version\r\n")
            word, _, version = answer.partition(b" ")
            if word != b"VERSION":
                raise unexpected(answer)
            if self._protocol == "text" or (self._protocol is None and not speaks_meta(version)):
                connection.dialect = _TEXT
            # Only now that it stands: a version that was got while it was being made says
            # nothing about the server at its other end.
            self.latest = connection.number = next(self._numbers)
            if self.tells_time and timeout is None:
                await connection.ask_for_time()
            return connection
        except BaseException:
            client.close()
            raise

    def _client(self, timeout: float) -> Any:
        """Return a client of pymemcache: small packets at once, tight timeouts."""
        server: object = self._server
        if isinstance(server, Address):
            host = run(server.resolve, self._connect_timeout)
            # A certificate is compared with the name, so the name is looked up again.
            server = (host if self._tls is None else server.host, server.port)
        return Client(
            server,
            connect_timeout=self._connect_timeout,
            timeout=timeout,
            no_delay=not isinstance(server, str),
            tls_context=self._tls,
        )

    def unavailable(self, error: BaseException, *, sent: bool) -> StoreUnavailable:
        if isinstance(error, TooLong):
            return RecordRefused(f"memcached at {self.address}: {error}")
        # A proxy may go on by itself after it has hung up on us.
        slow = isinstance(error, SLOW) or (sent and self._via_proxy)
        what = str(error) or type(error).__name__
        if isinstance(error, BlockingIOError):  # the kernel's own time-out has another text
            what = "timed out"
        return StoreUnavailable(f"memcached at {self.address}: {what}", sent=sent, slow=slow)


def unexpected(line: bytes) -> Refused:
    """Return the error for a line that is not in the protocol, or for memcached's own."""
    if not line.startswith(_ERRORS):
        return Refused(f"it answered {words(line)}")
    text = line if ids.are_plain() else line.partition(b" ")[0]  # the rest may have keys
    return Refused(f"it answered {text[:120].decode('latin-1').strip()!r}")


def speaks_meta(version: bytes) -> bool:
    """Return whether a server of that version has the meta protocol as it is documented.

    1.6.0 to 1.6.11 had other reply codes and another form of `ms`.
    """
    numbers = re.match(rb"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,9})", version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= (1, 6, 12)
