"""The TCP server: one thread, one selector, a limited number of clients.

Bound to the loopback interface by default: the protocol has no passwords. Clients take turns, each
with a limited amount of work. A client that does not read its replies has no further turn until it
does, so replies do not pile up. It is closed after a while, as is one that sends half a command, or
none.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from userlock_emulator.arguments import check
from userlock_emulator.limits import DEFAULTS, Limits
from userlock_emulator.memcache.cache import DEFAULT_MEMORY_LIMIT_BYTES, Cache
from userlock_emulator.memcache.protocol import Connection, Protocol
from userlock_emulator.sockets import listen

_log = logging.getLogger(__name__)

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 11211

_READ_BYTES = 64 * 1024
# sendmsg takes at most IOV_MAX pieces, 1024 on Linux.
_PIECES_PER_SEND = 512
_BACKLOG = 1024
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_JOIN_SECONDS = 5.0
# The work of a turn: 0.1 ms or so.
_WORK_PER_TURN = 100
_SWEEP_SECONDS = 1.0
_REFUSAL = b"ERROR Too many open connections\r\n"


class _Client:
    """A socket, its conversation, and the unsent replies."""

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        self.sock = sock
        self.connection = connection
        self.unsent: deque[memoryview] = deque()
        self.watched = selectors.EVENT_READ
        self.executed = 0
        self.deadline = 0.0


class Server:
    """A memcached that lives in this process.

    The constructor listens, and raises PortInUseError if it cannot. `start`
    serves in a daemon thread. As a context manager it starts and stops. Its data ends with it.
    """

    def __init__(
        self,
        port: int = 0,
        host: str = DEFAULT_HOST,
        *,
        memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
        limits: Limits = DEFAULTS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        check(int, memory_limit_bytes=memory_limit_bytes)
        check(Limits, limits=limits)
        self._limits = limits
        self._now = now
        self.cache = Cache(memory_limit_bytes=memory_limit_bytes)
        self._protocol = Protocol(self.cache)
        self._listener = listen(host, port, _BACKLOG)
        self.host: str
        self.port: int
        self.host, self.port = self._listener.getsockname()[:2]
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakened = socket.socketpair()
        self._waker.setblocking(False)
        self._clients: set[_Client] = set()
        # Clients with commands that have arrived but are not executed, the longest wait first.
        self._pending: dict[_Client, None] = {}
        self._next_sweep = 0.0
        self._accepting = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Return `HOST:PORT` for clients, with the port that was actually bound."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __enter__(self) -> Self:
        if self._thread is None:
            self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Serve in a daemon thread. Clients may connect at once: the socket is listening."""
        self._thread = threading.Thread(
            target=self._serve_forever, name=f"memcached-{self.port}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Hang up on all clients and free the port. Repeated calls are allowed."""
        self._stopping = True
        with contextlib.suppress(OSError):  # Full or closed: the thread is awake anyway.
            self._waker.send(b"\0")
        if self._thread is None:
            self._release()
        else:
            self._thread.join(_JOIN_SECONDS)

    def _serve_forever(self) -> None:
        try:
            self._listener.setblocking(False)
            self._selector.register(self._wakened, selectors.EVENT_READ)
            self._resume_accepting()
            while not self._stopping:
                self._turn()
        finally:
            self._release()

    def _turn(self) -> None:
        for key, _mask in self._selector.select(self._seconds_to_wait()):
            if isinstance(key.data, _Client):
                if key.data not in self._pending:
                    self._serve(key.data)
            elif key.fileobj is self._listener:
                self._accept()
        for client in list(self._pending):
            del self._pending[client]
            self._serve(client)
        self._expire()

    def _seconds_to_wait(self) -> float | None:
        if self._pending:
            return 0.0
        return max(self._next_sweep - self._now(), 0.0) if self._clients else None

    def _expire(self) -> None:
        now = self._now()
        if now < self._next_sweep:
            return
        self._next_sweep = now + min(_SWEEP_SECONDS, self._limits.request_seconds / 2)
        for client in [each for each in self._clients if each.deadline <= now]:
            self._hang_up(client)

    def _release(self) -> None:
        for client in list(self._clients):
            self._hang_up(client)
        for closing in (self._selector, self._listener, self._waker, self._wakened):
            closing.close()

    def _resume_accepting(self) -> None:
        if not self._accepting:
            self._accepting = True
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            sock, _peer = self._listener.accept()
        except OSError as error:
            # Without a free descriptor the listener would stay readable and this loop spin. Wait
            # until a client leaves. Other errors concern one peer only.
            if error.errno in _OUT_OF_DESCRIPTORS and self._clients:
                self._accepting = False
                self._selector.unregister(self._listener)
            return
        sock.setblocking(False)
        if len(self._clients) >= self._limits.max_connections:
            with sock, contextlib.suppress(OSError):
                sock.send(_REFUSAL)
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = _Client(sock, self._protocol.connect())
        client.deadline = self._now() + self._limits.request_seconds
        self._clients.add(client)
        self._selector.register(sock, selectors.EVENT_READ, client)

    def _serve(self, client: _Client) -> None:
        try:
            if client.unsent:
                self._send(client)
            elif client.connection.pending:
                self._execute(client, b"")
            else:
                self._read(client)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(client)
        except Exception:
            # An error in one command costs one connection, not the server.
            _log.exception("hanging up on a client", extra={"action": "memcache_hang_up"})
            self._hang_up(client)

    def _read(self, client: _Client) -> None:
        data = client.sock.recv(_READ_BYTES)
        if data:
            self._execute(client, data)
        else:
            self._hang_up(client)

    def _execute(self, client: _Client, data: bytes) -> None:
        """Execute some of the commands that have arrived, and send the replies."""
        connection = client.connection
        was_midway = connection.is_midway and not connection.pending
        pieces = connection.receive(data, most=_WORK_PER_TURN)
        if client.executed != connection.executed or not was_midway:
            # Bytes alone do not extend the time for a command to arrive.
            midway = connection.is_midway or not connection.executed
            client.deadline = self._now() + self._seconds_for(midway=midway)
            client.executed = connection.executed
        client.unsent.extend(map(memoryview, pieces))
        if client.unsent:
            self._send(client)
        else:
            self._settle(client)

    def _seconds_for(self, *, midway: bool) -> float:
        return self._limits.request_seconds if midway else self._limits.idle_seconds

    def _send(self, client: _Client) -> None:
        unsent = client.unsent
        with contextlib.suppress(BlockingIOError):
            while unsent:
                pieces = [piece for piece, _ in zip(unsent, range(_PIECES_PER_SEND), strict=False)]
                sent = client.sock.sendmsg(pieces)
                while unsent and sent >= len(unsent[0]):
                    sent -= len(unsent.popleft())
                if sent:
                    unsent[0] = unsent[0][sent:]
                midway = bool(unsent) or client.connection.is_midway
                client.deadline = self._now() + self._seconds_for(midway=midway)
        self._settle(client)

    def _settle(self, client: _Client) -> None:
        """Decide what the client is served next for: its replies, its commands, or a read."""
        if client.unsent:
            wanted = selectors.EVENT_WRITE
        elif client.connection.closed:
            self._hang_up(client)
            return
        else:
            wanted = selectors.EVENT_READ
            if client.connection.pending:
                self._pending[client] = None
        if wanted != client.watched:
            client.watched = wanted
            if client.unsent:
                client.deadline = self._now() + self._limits.request_seconds
            self._selector.modify(client.sock, wanted, client)

    def _hang_up(self, client: _Client) -> None:
        self._clients.discard(client)
        self._pending.pop(client, None)
        self._protocol.disconnect(client.connection)
        self._selector.unregister(client.sock)
        client.sock.close()
        if not self._stopping:
            self._resume_accepting()


def start(
    port: int = 0,
    host: str = DEFAULT_HOST,
    *,
    memory_limit_bytes: int = DEFAULT_MEMORY_LIMIT_BYTES,
    limits: Limits = DEFAULTS,
) -> Server:
    """Start a server in a daemon thread; port 0 picks a free port.

    Raises OSError if the address is taken or does not resolve. Stop the server with `stop()`, or
    use it in a `with` block.
    """
    server = Server(port, host, memory_limit_bytes=memory_limit_bytes, limits=limits)
    server.start()
    return server
