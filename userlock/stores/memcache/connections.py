"""Connections to one memcached server, through pymemcache.

They are kept in a stack, so that a process has about as many as it has
threads that use the lock at one moment, and never more than a bound; whoever
needs one more waits. What this adds to pymemcache:

- A connection knows *when* it was made, as a number from one sequence that
  versions are numbered in too. A connection older than a version proves that
  the server has not been restarted since (a restart cuts every connection),
  and so that CAS numbers still mean what they meant.
- A connection knows what time it is at the server (`server_time`).
- A look-up of the server's name that does not answer cannot hang a request.
- A forked child starts with no connections.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from typing import Any

from pymemcache.client.base import Client

from userlock.clock import SYSTEM_CLOCK, Clock
from userlock.stores.address import Address
from userlock.stores.connection_limit import Place, Places
from userlock.stores.memcache.dialects import Dialect, Meta, Text
from userlock.stores.memcache.server_time import ServerTime
from userlock.stores.memcache.wire import Connection, is_a_break

_META: Dialect = Meta()
_TEXT: Dialect = Text()

ClientFactory = Callable[[tuple[str, int], float, float], Any]


def plain_client(server: tuple[str, int], connect_timeout: float, timeout: float) -> Any:
    """Return a pymemcache client as the store wants it: small packets at once, tight timeouts."""
    return Client(server, connect_timeout=connect_timeout, timeout=timeout, no_delay=True)


class Connections:
    """The connections of this process to one server. Thread-safe; none is shared.

    Args:
        host, port: the server.
        connect_timeout: for finding and connecting to it, in seconds.
        timeout: for a reply, in seconds.
        client_factory: makes pymemcache clients, for TLS and the like.
        protocol: "meta" or "text"; None to ask the server.
        tells_time: whether it is the server itself that answers, and can be asked for its time.
        clock: ours, to compare with the server's.
        most: how many there may be. Whoever needs one more waits for up to `timeout`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout: float,
        timeout: float,
        client_factory: ClientFactory = plain_client,
        protocol: str | None = None,
        tells_time: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        most: int = 32,
    ) -> None:
        self._address = Address(host, port)
        self._connect_timeout = connect_timeout
        self._timeout = timeout
        self._client_factory = client_factory
        self._protocol = protocol
        self._tells_time = tells_time
        self._clock = clock
        self._most = most
        # Versions and connections are numbered in one sequence, so that it can
        # be told which came first. `next` on a count is atomic in CPython.
        self.sequence = itertools.count()
        self._idle: list[Connection] = []
        self._places = Places(most, self._idle)
        # A store that is dropped leaves no open sockets behind.
        weakref.finalize(self, _close_all, self._idle)
        _all.add(self)

    def take(self, *, checked: bool = True) -> Connection:
        """Return a connection for one exchange, to be given back or closed.

        Args:
            checked: look first whether it has ended while it stood idle. Not needed for a
                command that can be sent again.
        """
        try:
            connection = self._idle.pop()  # atomic; the latest used is the likeliest alive
        except IndexError:
            return self._one_more()
        if not checked or not connection.stale:
            return connection
        connection.close()
        self.drop_idle()
        return self.make()

    def take_in_time(self, *, checked: bool = True) -> Connection:
        """As `take`, for a command that stores something: it is known what time it is there."""
        connection = self.take(checked=checked)
        there = connection.time
        there.moment = moment = there.now()
        if moment < there.good_until:
            return connection
        try:
            known = there.ask(connection)
        except BaseException as error:
            connection.close()
            if not is_a_break(error):
                raise
            self.drop_idle()
        else:
            if known:
                return connection
            connection.close()
        return self.make()

    def _one_more(self) -> Connection:
        """Return a new one or, where there may be no more, the next that is given back."""
        given = self._places.take(self._timeout)
        return self._made(given) if isinstance(given, Place) else given

    def give_back(self, connection: Connection) -> None:
        """Keep it for the next one."""
        self._idle.append(connection)
        if self._places.waiters:
            self._places.hand_on()

    def make(self, timeout: float | None = None) -> Connection:
        """Return a new connection.

        Args:
            timeout: another reply timeout than usual, in seconds, for somebody in a hurry who
                wants to store nothing: the server is not asked for its time.

        Raises:
            OSError, MemcacheError: the server cannot be reached, or does not answer.
            Refused: it does not make sense.
        """
        given = self._places.take(self._timeout)
        if isinstance(given, Place):
            return self._made(given, timeout)
        place = given.place
        assert place is not None, "it was closed, and kept"
        given.close()
        return self._made(place, timeout)

    def _made(self, place: Place, timeout: float | None = None) -> Connection:
        try:
            connection = self._connected(timeout)
        except BaseException:
            # Whoever keeps the error keeps its frames, and the place with them.
            self._places.free(place)
            raise
        connection.place = place
        return connection

    def _connected(self, timeout: float | None) -> Connection:
        server = self._address.resolve(self._connect_timeout)
        client = self._client_factory(
            server, self._connect_timeout, self._timeout if timeout is None else timeout
        )
        try:
            connection = Connection(client, self._protocol)
            # Only now that it stands: a version that was got while it was being made says
            # nothing about the server at its other end.
            connection.made = next(self.sequence)
            connection.dialect = _META if connection.meta else _TEXT
            connection.time = ServerTime(self._clock.now)
            if self._tells_time and timeout is None:
                connection.time.ask(connection)
            return connection
        except BaseException:
            client.close()
            raise

    def drop_idle(self) -> None:
        """Close what stands idle: after one has broken, the others are likely broken too."""
        _close_all(self._idle)
        self._places.hand_on()

    def start_again_after_fork(self) -> None:
        """In a forked child: let go of the parent's connections, and of its look-up's thread.

        Closing the child's descriptors leaves the parent's open, and
        pymemcache sends nothing on close.
        """
        # Those that were in use will not come back; nor can who waited be woken.
        self._places = Places(self._most, self._idle)
        self.drop_idle()
        self._address = Address(self._address.host, self._address.port)


def _close_all(idle: list[Connection]) -> None:
    while idle:
        try:
            idle.pop().close()
        except IndexError:  # another thread took the last one
            return


_all: weakref.WeakSet[Connections] = weakref.WeakSet()


def _forget_parents_connections() -> None:
    for connections in list(_all):
        connections.start_again_after_fork()


os.register_at_fork(after_in_child=_forget_parents_connections)
