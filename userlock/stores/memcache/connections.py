"""Connections to one memcached server, through pymemcache.

They add to pymemcache's:

- Connections are numbered, and a version knows the latest one of its time. One that is not
  later proves that the server has not been restarted since (a restart cuts every connection),
  and so that CAS numbers still mean what they meant.
- A connection knows the time at the server (`server_time`).
- A look-up of the server's name that does not answer cannot hang a request.
"""

from __future__ import annotations

import itertools
import math
import ssl
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from pymemcache.client.base import Client
from pymemcache.exceptions import MemcacheError

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.lock.store import RecordRefused, StoreUnavailable
from userlock.stores.address import Address
from userlock.stores.memcache.dialects import Dialect, Meta, Text
from userlock.stores.memcache.server_time import LAST_DATE, MOST_BEHIND, ServerTime
from userlock.stores.memcache.wire import SLOW, TROUBLE, Wire, is_a_break, speaks_meta
from userlock.stores.pool import Exchange, Pool
from userlock.stores.stream import Refused, TooLong

_Args = TypeVarTuple("_Args")
_Answer = TypeVar("_Answer")

_META: Dialect = Meta()
_TEXT: Dialect = Text()

#: A host and a port, or the path of a socket in the file system.
Server = tuple[str, int] | str


class NotInTime(Exception):
    """The server's time is not known on this connection. Nothing was stored."""

    def __init__(self, *, ended: bool) -> None:
        super().__init__()
        self.ended = ended


class Connection(Wire):
    """A connection in its pool.

    Attributes:
        number: the later, the higher.
        dialect: speaks the server's protocol.
        time: the time at the server.
    """

    def __init__(
        self,
        client: Any,
        timeout: float,
        now: Callable[[], float],
    ) -> None:
        super().__init__(client, timeout, now)
        self.number = 0
        self.dialect = _META
        self.time = ServerTime(now)

    async def open(self, protocol: str | None) -> None:
        """Find out what the server speaks."""
        version = await self.version()
        if protocol == "text" or (protocol is None and not speaks_meta(version)):
            self.dialect = _TEXT

    async def until(self, ttl_seconds: float) -> int:
        """Return the expiration of a record that is stored now, to live that long or longer.

        A date; or seconds, for a server that does not tell its time.

        Raises:
            NotInTime: another connection has to be asked.
        """
        time = self.time
        if self.began >= time.good_until:
            await self._ask_for_time()
        ahead = time.ahead
        if ahead is not None:
            date = int(self.began + ahead + ttl_seconds + self.dialect.grace_seconds) + 1
            if date <= LAST_DATE:
                return date
        return math.ceil(ttl_seconds + self.dialect.grace_seconds + MOST_BEHIND)

    async def _ask_for_time(self) -> None:
        try:
            known = await self.time.ask(self)
        except BaseException as error:
            if is_a_break(error):
                raise NotInTime(ended=True) from error
            raise
        if not known:
            raise NotInTime(ended=False)
        self.begin()


class Connections(Pool[Connection]):
    """The connections of this process to one server; for the arguments see `MemcacheStore`.

    Attributes:
        address: the server's, in full.
        tells_time: whether the server itself answers, and can be asked for its time.
        latest: the number of the latest connection, for versions that are got now.
    """

    trouble = (*TROUBLE, Refused)

    def __init__(
        self,
        server: Server,
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
        self._path = ""
        if isinstance(server, str):
            self.address = self._path = server
        else:
            self._address = Address(*server)
            host, port = server
            self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.tells_time = not via_proxy
        self._numbers = itertools.count(1)
        self.latest = 0
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._protocol = protocol
        self._via_proxy = via_proxy
        self._tls = tls
        self._clock = clock

    async def ask_in_time(
        self, exchange: Exchange[Connection, *_Args, _Answer], *args: *_Args
    ) -> _Answer:
        """As `exchange`, for one that stores something, by `until`."""
        try:
            return await self.exchange(True, exchange, *args)
        except NotInTime as trouble:
            return await self.ask_anew(trouble, exchange, *args)

    async def ask_anew(
        self,
        trouble: NotInTime,
        exchange: Exchange[Connection, *_Args, _Answer],
        *args: *_Args,
    ) -> _Answer:
        """Repeat an exchange that has stored nothing on a new connection."""
        if trouble.ended:
            self.drop_idle()
        return await self.ask_apart(exchange, None, *args)

    async def connect(self, timeout: float | None) -> Connection:
        """Return a new connection. With a timeout of its own it does not ask for the time."""
        patience = self._timeout if timeout is None else timeout
        client = self._client(patience)
        try:
            # One deadline for its version and its time.
            connection = Connection(client, patience, self._clock.now)
            await connection.open(self._protocol)
            # Only now that it stands: a version that was got while it was being made says
            # nothing about the server at its other end.
            self.latest = connection.number = next(self._numbers)
            if self.tells_time and timeout is None:
                await connection.time.ask(connection)
            return connection
        except BaseException:
            client.close()
            raise

    def _client(self, timeout: float) -> Any:
        """Return a client of pymemcache: small packets at once, tight timeouts."""
        server: Server = self._path
        if not self._path:
            address = self._address
            host = address.resolve(self._connect_timeout)
            # A certificate is compared with the name, so the name is looked up again.
            server = (host if self._tls is None else address.host, address.port)
        return Client(
            server,
            connect_timeout=self._connect_timeout,
            timeout=timeout,
            no_delay=not self._path,
            tls_context=self._tls,
        )

    def is_a_break(self, error: BaseException) -> bool:
        return is_a_break(error)

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
