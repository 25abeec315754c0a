"""Connections to one memcached server, each of which knows the server's time.

Connections are numbered, and a version knows the latest one of its time. One that is not later
proves that the server has not been restarted since (a restart cuts every connection), and so that
CAS numbers still mean what they meant.

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

So commands carry a date in the server's own time. An item that is stored late ends when it would
have ended anyway; one that comes after its date is not stored.

Each connection asks for the server's time (`stats`) when it is made, and from time to time. The
answer is at most two seconds old, or older if the server has just been stopped; so the latest
possible time counts. A server whose time is far behind what it was either has been stopped, or its
clock has not gone on while its machine was suspended. A new connection decides between the two:
the thread that sets the clock is the one that accepts connections.
"""

from __future__ import annotations

import itertools
import math
import ssl
from collections.abc import Callable
from typing import Any

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import RecordRefused, StoreUnavailable
from userlock.stores.address import Address, joined
from userlock.stores.memcache.dialects import (
    ERRORS,
    Item,
    Meta,
    Text,
    Wire,
    speaks_meta,
    unexpected,
)
from userlock.stores.pool import SLOW, NotHere, Pool
from userlock.stores.stream import Refused, TooLong, number

#: How old a running server's time is at most, in seconds: a fraction that it does not count, a
#: second until it counts the next one, and something for a thread that is late.
_MOST_BEHIND = 2.1
#: For how long an answer is good, in seconds. Clocks drift apart by some milliseconds meanwhile.
_GOOD_FOR = 10.0
#: A running server's answers differ by less than two seconds, besides the drift of clocks.
_MOST_DIFFERENCE = 2.5
#: memcached reads less than the first as a duration (up to 30 days), or a server's clock was never
#: set; it cannot count beyond the last.
_FIRST_DATE, _LAST_DATE = 1 << 30, (1 << 31) - 1

_META, _TEXT = Meta(), Text()


class Connection(Wire):
    """A connection in its pool. `now`: must go on while the machine is suspended."""

    def __init__(self, client: Any, timeout: float, now: Callable[[], float]) -> None:
        super().__init__(client, timeout, now)
        self.number = 0  # the later, the higher
        self.dialect: Meta | Text = _META
        #: When the server started, by its clock; its time less ours, at most. None: it did not say.
        self.started: int | None = None
        self.ahead: float | None = None
        self.good_until = math.inf  # what it said of its time

    async def read(self, key: bytes) -> Item | None:
        """Return the item under a key."""
        dialect = self.dialect
        await self.send(dialect.get % key)
        item = await dialect.item(self, await self.read_line())
        self.finish()
        return item

    async def until(self, ttl_seconds: float) -> int:
        """Return the expiration of a record that is stored now, to live that long or longer.

        A date; or seconds, for a server that does not tell its time. `NotHere`: the time is not
        known on this connection.
        """
        if self.began >= self.good_until:
            try:
                known = await self.ask_for_time()
            except SLOW:
                raise
            except Connections.breaks as error:
                raise NotHere(ended=True) from error
            if not known:
                raise NotHere(ended=False)
            self.begin()
        if self.ahead is not None:
            date = int(self.began + self.ahead + ttl_seconds + self.dialect.grace_seconds) + 1
            if date <= _LAST_DATE:
                return date
        return math.ceil(ttl_seconds + self.dialect.grace_seconds + _MOST_BEHIND)

    async def ask_for_time(self) -> bool:
        """Ask the server for its time; one round trip.

        False if it is far behind what it was: another connection must be asked.
        """
        asked_at = self._now()
        await self.send(b"stats\r\n")
        says: dict[bytes, bytes] = {}
        while (line := await self.read_line()) != b"END" and not line.startswith(ERRORS):
            name, _, value = line.removeprefix(b"STAT ").partition(b" ")
            if not line.startswith(b"STAT "):
                raise unexpected(line)
            says[name] = value
        self.finish()
        time = number(says.get(b"time", b"0"))
        if time < _FIRST_DATE:
            self.ahead, self.good_until = None, math.inf
            return True
        if b"uptime" in says:  # both count from one clock: always the same difference
            self.started = time - number(says[b"uptime"])
        ahead = time + _MOST_BEHIND - asked_at
        if self.ahead is not None:
            if ahead < self.ahead - _MOST_DIFFERENCE:
                return False
            ahead = max(ahead, self.ahead)
        self.ahead, self.good_until = ahead, asked_at + _GOOD_FOR
        return True


class Connections(Pool[Connection]):
    """The connections of this process to one server; for the arguments see `MemcacheStore`."""

    breaks = (OSError, MemcacheError)
    trouble = (*breaks, Refused)

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
            word, _, version = (answer := await connection.line(b"version\r\n")).partition(b" ")
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
            host = server.resolve(self._connect_timeout)
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
        if isinstance(error, MemcacheError) and not str(error):
            what = "the server closed the connection"
        return StoreUnavailable(f"memcached at {self.address}: {what}", sent=sent, slow=slow)
