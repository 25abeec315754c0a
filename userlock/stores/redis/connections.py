"""Connections to one Redis server: redis-py's, in a stack of our own.

redis-py's pools would do, but for four things: they do not tell whether a
command was sent before something went wrong, a look-up of the server's name
may hang in them, they cannot be asked for a fresh connection with another
time-out, and what they do with connections that have gone stale depends on
their version. There are never more than a bound; whoever needs one more waits.
A forked child starts with no connections.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from userlock.stores.address import Address
from userlock.stores.connection_limit import Place, Places

#: For finding and connecting to the server, and for its reply, in seconds.
CONNECT_TIMEOUT = 0.1
REPLY_TIMEOUT = 0.3
#: For a reply when the server has just been slow, in seconds. What a hanging server costs one
#: request is this and `REPLY_TIMEOUT`.
HURRY_TIMEOUT = 0.1

#: Whatever a server that is in trouble, or is no Redis, makes redis-py raise.
TROUBLE = (redis.RedisError, OSError, ValueError, IndexError)


class Connections:
    """The connections of this process to one server. Thread-safe; none is shared.

    Args:
        pool: a redis-py pool. Its kind of connection and their options are used; it is kept,
            because Sentinel's connections ask it where the master is.
        most: how many there may be. Whoever needs one more waits for as long as for a reply.

    Attributes:
        name: the server's, for people.
    """

    def __init__(self, pool: Any, *, most: int = 32) -> None:
        self._pool = pool
        self._options: dict[str, Any] = {
            **pool.connection_kwargs,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_timeout": False,
            "retry_on_error": [],
        }
        host = self._options.get("host")
        self._address = Address(host, int(self._options.get("port", 6379))) if host else None
        self._idle: list[Any] = []
        self._most = most
        self._places = Places[Any](most, self._idle)
        if self._address:
            self.name = f"{self._address.host}:{self._address.port}"
        else:  # a socket in the file system, or a service that Sentinel knows
            self.name = str(self._options.get("path") or getattr(pool, "service_name", "?"))
        _all.add(self)

    def take(self, *, hurry: bool) -> Any:
        """Return a connection for one exchange.

        Args:
            hurry: a new one, that waits for its reply less long.
        """
        if hurry:
            return self._one_more(fresh=True, socket_timeout=HURRY_TIMEOUT)
        try:
            connection = self._idle.pop()  # atomic; the latest used is the likeliest alive
        except IndexError:
            return self._one_more()
        if not _is_stale(connection):
            return connection
        self.close(connection)
        self.drop_idle()
        return self._one_more(fresh=True)

    def _one_more(self, *, fresh: bool = False, **options: Any) -> Any:
        """Return a new one or, where there may be no more, the next that is given back.

        Args:
            fresh: a new one in any case.
            options: of the new one.
        """
        given = self._places.take(self._options.get("socket_timeout") or REPLY_TIMEOUT)
        if isinstance(given, Place):
            place = given
        elif not fresh:
            return given
        else:
            place = given.userlock_place
            given.disconnect()
        try:
            connection = self._resolved(**options)
        except BaseException:
            # Whoever keeps the error keeps its frames, and the place with them.
            self._places.free(place)
            raise
        connection.userlock_place = place
        return connection

    def give_back(self, connection: Any) -> None:
        """Keep it for the next one."""
        self._idle.append(connection)
        if self._places.waiters:
            self._places.hand_on()

    def close(self, connection: Any) -> None:
        """Close it. Somebody else may make one."""
        connection.disconnect()
        connection.userlock_place = None
        self._places.hand_on()

    def make(self, **options: Any) -> Any:
        """Return a connection that has not been made yet."""
        return self._pool.connection_class(**{**self._options, **options})

    def _resolved(self, **options: Any) -> Any:
        """A connection to be made, the server's name looked up without waiting for too long."""
        if self._address is not None:
            # Those over TLS need the name, for the certificate, and look it up again.
            timeout = self._options.get("socket_connect_timeout") or CONNECT_TIMEOUT
            host, _ = self._address.resolve(timeout)
            if self._pool.connection_class is redis.Connection:
                options["host"] = host
        return self.make(**options)

    def drop_idle(self) -> None:
        """Close what stands idle."""
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:  # another thread took the last one
                return
            self.close(connection)

    def start_again_after_fork(self) -> None:
        """In a forked child: let go of the parent's connections, and of its look-up's thread.

        redis-py closes the child's descriptors only, which leaves the
        parent's open.
        """
        # Those that were in use will not come back; nor can who waited be woken.
        self._places = Places(self._most, self._idle)
        self.drop_idle()
        if self._address is not None:
            self._address = Address(self._address.host, self._address.port)


def _is_stale(connection: Any) -> bool:
    """Return whether this idle connection is readable: most likely it has ended.

    Seen before anything is sent, a dead connection is simply replaced, and
    nobody need wonder whether a command on it was carried out.
    """
    try:
        return bool(connection.can_read(0))
    except TROUBLE:
        return True


_all: weakref.WeakSet[Connections] = weakref.WeakSet()


def _forget_parents_connections() -> None:
    for connections in list(_all):
        connections.start_again_after_fork()


os.register_at_fork(after_in_child=_forget_parents_connections)
