"""The connections of a process to one server.

A process has about as many as it has threads that use locks at one moment, and
never more than a bound: a thread that needs one more waits for its turn
(`connection_limit`). A forked child starts with no connections.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from userlock.fork import reset_in_child
from userlock.lock.store import StoreUnavailable
from userlock.stores.connection_limit import Place, Places

#: For finding and connecting to a server, and for its reply, in seconds.
CONNECT_TIMEOUT = 0.1
REPLY_TIMEOUT = 0.3
#: For a reply when the server has just been slow, in seconds. A hanging server costs one request
#: this and `REPLY_TIMEOUT` before the breaker opens.
HURRY_TIMEOUT = 0.1
#: For a connection while all are in use, in seconds. A burst of hundreds of threads takes its turns
#: within it, to a server some 40 ms away.
PATIENCE = 1.0


class Connection(Protocol):
    """One connection, used by one thread at a time."""

    #: In its pool, until it is closed.
    place: Place | None

    def begin(self) -> None:
        """Begin an exchange: its deadline and its bound (`stream`) count from here on."""
        ...

    @property
    def stale(self) -> bool:
        """Return whether this idle connection is readable: most likely it has ended.

        A dead connection is replaced before anything is sent and in doubt.
        """
        ...

    def close(self) -> None:
        """Close it. It cannot be used again."""
        ...


_C = TypeVar("_C", bound=Connection)
_Answer = TypeVar("_Answer")


class Pool(abc.ABC, Generic[_C]):
    """Connections to one server. Thread-safe; none is shared.

    Args:
        most: how many there may be.

    Attributes:
        trouble: the errors whose cause is the server, or the way there.
        idle: the connections that stand idle, the latest used last.
    """

    trouble: tuple[type[BaseException], ...]

    def __init__(self, *, most: int) -> None:
        self.idle: list[_C] = []
        self._most = most
        self._places = Places(most, self.idle)
        # A store that is dropped leaves no open sockets behind.
        weakref.finalize(self, _close_all, self.idle)
        reset_in_child(self._start_again)

    @abc.abstractmethod
    def connect(self, timeout: float | None) -> _C:
        """Return a new connection; `timeout`: another one for replies than usual, in seconds."""

    @abc.abstractmethod
    def is_a_break(self, error: BaseException) -> bool:
        """Return whether the error means that the connection has ended."""

    @abc.abstractmethod
    def unavailable(self, error: BaseException, *, sent: bool) -> StoreUnavailable:
        """Return the lock service's error for one of `trouble`."""

    # --- exchanges --------------------------------------------------------------------------

    def ask(
        self, exchange: Callable[[_C], _Answer], take: Callable[[], _C] | None = None
    ) -> _Answer:
        """Return the result of an exchange on a connection.

        After any error, `KeyboardInterrupt` included, the connection is closed:
        a reply may still be on its way, and would be taken for the next
        command's. Trouble with the server is raised as `StoreUnavailable`.

        Args:
            exchange: sends commands, and reads all their replies.
            take: gives the connection; by default `self.take`.
        """
        connection = None
        try:
            connection = self.take() if take is None else take()
            connection.begin()
            answer = exchange(connection)
        except BaseException as error:
            self._failed(connection, error)
            raise
        self.give_back(connection)
        return answer

    def ask_to_read(self, exchange: Callable[[_C], _Answer], *, hurry: bool = False) -> _Answer:
        """Return the result of an exchange that changes nothing, and so may be repeated.

        Args:
            exchange: is repeated on another connection if the first one breaks.
            hurry: ask once, on a new connection, with `HURRY_TIMEOUT` for a reply.
        """
        if hurry:
            return self.ask_apart(exchange, HURRY_TIMEOUT)
        try:
            return self.ask(exchange, self.take_unchecked)
        except StoreUnavailable as trouble:
            cause = trouble.__cause__
            if not trouble.sent or cause is None or not self.is_a_break(cause):
                raise
        try:
            return self.ask(exchange)
        except StoreUnavailable as later:
            later.sent = True  # the first one was
            raise

    def ask_apart(self, exchange: Callable[[_C], _Answer], timeout: float | None = None) -> _Answer:
        """Return the result of an exchange on a new connection, which is closed afterwards."""
        connection = None
        try:
            connection = self.make(timeout)
            connection.begin()
            answer = exchange(connection)
        except BaseException as error:
            self._failed(connection, error)
            raise
        self.close(connection)
        return answer

    def _failed(self, connection: _C | None, error: BaseException) -> None:
        """Close the connection of an exchange that failed; raise trouble with the server."""
        trouble = None
        if isinstance(error, self.trouble):
            trouble = self.unavailable(error, sent=connection is not None)
            if connection is None or trouble.slow:
                self._places.refuse(trouble.reason)
        if connection is not None:
            self.close(connection)
        if trouble is not None:
            if not trouble.serves_others:
                self.drop_idle()  # likely broken too
            raise trouble from error

    # --- connections ------------------------------------------------------------------------

    def take(self) -> _C:
        """Return a connection for one exchange, to be given back or closed.

        An idle one that has ended is replaced, before anything is sent and in doubt.
        """
        connection = self.take_unchecked()
        if not connection.stale:
            return connection
        self.close(connection)
        self.drop_idle()
        return self.make()

    def take_unchecked(self) -> _C:
        """Return a connection that may have ended while it was idle. Saves a system call."""
        try:  # (`suppress` would take longer than the rest)
            return self.idle.pop()  # atomic; the latest used is the likeliest alive
        except IndexError:
            pass
        given = self._places.take(PATIENCE)
        return self._made(given) if isinstance(given, Place) else given

    def make(self, timeout: float | None = None) -> _C:
        """Return a new connection. Where there may be no more, an idle one is closed for it."""
        given = self._places.take(PATIENCE)
        if isinstance(given, Place):
            return self._made(given, timeout)
        place = given.place
        assert place is not None, "a closed connection was kept"
        given.close()
        return self._made(place, timeout)

    def _made(self, place: Place, timeout: float | None = None) -> _C:
        try:
            connection = self.connect(timeout)
        except BaseException:
            # A kept error keeps its frames, and the place with them.
            self._places.free(place)
            raise
        connection.place = place
        return connection

    def give_back(self, connection: _C) -> None:
        """Keep it for the next exchange."""
        self.idle.append(connection)
        if self._places.waiters:
            self._places.hand_on()

    def close(self, connection: _C) -> None:
        """Close it. Another thread may make one."""
        connection.close()
        connection.place = None
        self._places.hand_on()

    def drop_idle(self) -> None:
        """Close those that stand idle."""
        _close_all(self.idle)
        self._places.hand_on()

    def _start_again(self) -> None:
        """Let go of the parent's connections, in a forked child: nothing is sent on close."""
        # Those in use will not come back; nor can waiting threads be woken.
        self._places = Places(self._most, self.idle)
        self.drop_idle()


def _close_all(idle: list[_C]) -> None:
    while idle:
        try:
            connection = idle.pop()
        except IndexError:  # another thread took the last one
            return
        connection.close()
        connection.place = None
