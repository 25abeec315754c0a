"""A program that serves gRPC and HTTP/1.1 on one port.

    relay.py LISTENER EMULATOR GRPC_PORT MAX_CONNECTIONS REQUEST_SECONDS TAKEN

(two inherited file descriptors, a port, the bounds of `Limits`, and the number of connections that
the emulator has already)

gRPC's server accepts no existing connection, only a port. So this program owns the public port. It
connects each HTTP/2 connection to gRPC's own port and forwards bytes both ways. Any other
connection is handed over to the emulator unread.

    client ──▶ relay ── "PRI * HTTP/2.0 …" ──▶ bytes to and from gRPC's port
                     └─ anything else ───────▶ the connection itself, to the emulator

Every connection passes here, so this is where they are counted. The emulator sends a byte for each
connection handed over that has ended.

It is a separate process because the emulator's threads share one interpreter lock. As one more
thread it costs a fifth to a half of the lookups per second; as a process, 0.05 ms of the other
core's time per RPC. It imports only the standard library, to start in some 20 ms. It ends when the
emulator's end of the socket is closed, so it never outlives an emulator that was killed.
"""

import contextlib
import resource
import selectors
import socket
import sys
import time
from collections.abc import Callable

# HTTP/2 begins with "PRI * HTTP/2.0"; no method of HTTP/1.1 begins with these three.
_PREFACE = b"PRI"
_READ_BYTES = 256 * 1024
_LOOPBACK = "127.0.0.1"
#: The address of connections to gRPC that have the number of the client's port. Linux has it.
PORT_OF_CLIENT = "127.0.0.2"
_BODY = b'{"error": "too many connections: close some, or raise --max-connections"}\n'
# Understood by HTTP/1.1; a gRPC client reports UNAVAILABLE.
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)
# Two files for each connection; the others are the standard streams, the listener and such.
_OTHER_FILES = 16


class _End:
    """One of two sockets between which bytes are forwarded."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.other = self
        self.unsent = b""  # received from the other end, not yet sent to this one
        self.watched = 0
        self.closed = False


class Relay:
    """The server of the public socket, until the emulator closes its end.

    Args:
        listener: the socket that clients connect to.
        emulator: a Unix socket that takes connections, one per message.
        grpc_port: port of the gRPC server on the loopback interface.
        max_connections: the most connections at a time, those of the emulator included.
        request_seconds: the time for a client to begin a request, and to take some of its reply.
        taken: number of connections that the emulator has already.
        now: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        listener: socket.socket,
        emulator: socket.socket,
        grpc_port: int,
        *,
        max_connections: int,
        request_seconds: float,
        taken: int = 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._emulator = emulator
        self._grpc = (_LOOPBACK, grpc_port)
        self._max_connections = max_connections
        self._request_seconds = request_seconds
        self._taken = taken
        self._pairs = 0
        self._now = now
        # Connections with too few bytes to decide, and clients that leave a reply unread. Both in
        # the order of their deadlines.
        self._undecided: dict[socket.socket, float] = {}
        self._unread: dict[_End, float] = {}
        self._selector = selectors.DefaultSelector()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._emulator, selectors.EVENT_READ)

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._undecided) + self._pairs + self._taken

    def run(self) -> None:
        """Serve until the emulator closes its end."""
        while self.step(self._seconds_left()):
            pass

    def step(self, timeout_seconds: float | None = 0.0) -> bool:
        """Serve what is ready. Return False when the emulator has closed its end."""
        for key, events in self._selector.select(timeout_seconds):
            if key.fileobj is self._emulator:
                ended = self._emulator.recv(4096)
                if not ended:
                    return False
                self._taken -= len(ended)
            elif key.fileobj is self._listener:
                self._accept()
            elif isinstance(key.data, _End):
                self._move(key.data, events)
            elif isinstance(key.fileobj, socket.socket):
                self._sort(key.fileobj)
        self._expire()
        return True

    def _seconds_left(self) -> float | None:
        """Return the time until the next deadline, if there is any."""
        first = [next(iter(each.values())) for each in (self._undecided, self._unread) if each]
        return max(min(first) - self._now(), 0.0) if first else None

    def _expire(self) -> None:
        now = self._now()
        for connection, deadline in list(self._undecided.items()):
            if deadline > now:
                break
            self._forget(connection)
            connection.close()
        for end, deadline in list(self._unread.items()):
            if deadline > now:
                break
            self._close(end)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the client has disconnected
        connection.setblocking(False)
        if self.connections >= self._max_connections:
            _refuse(connection)
            return
        # The socket is readable once it has enough bytes to decide, or at its end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(_PREFACE))
        self._undecided[connection] = self._now() + self._request_seconds
        self._selector.register(connection, selectors.EVENT_READ)

    def _forget(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._undecided[connection]

    def _sort(self, connection: socket.socket) -> None:
        self._forget(connection)
        try:
            begins = connection.recv(len(_PREFACE), socket.MSG_PEEK)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if begins == _PREFACE:
                self._connect(connection)
                return
            if begins:
                connection.setblocking(True)  # the other side keeps this setting
                socket.send_fds(self._emulator, [b"."], [connection.fileno()])
                self._taken += 1
        except OSError:
            pass  # the client has disconnected, or gRPC's server, which the client sees at once
        connection.close()

    def _connect(self, connection: socket.socket) -> None:
        client, server = _End(connection), _End(self._to_grpc(connection))
        client.other, server.other = server, client
        self._pairs += 1
        self._watch(client)
        self._watch(server)

    def _to_grpc(self, connection: socket.socket) -> socket.socket:
        """Connect to gRPC's server, from the port number of a client on this machine if possible.

        gRPC sees this connection alone. By the number it can tell the client. Such a client has
        taken the number on this machine already. That of another machine may be needed here.
        """
        with contextlib.suppress(OSError):  # the number is in use, or there is no such address
            address, port = connection.getpeername()[:2]
            if address == _LOOPBACK:
                source = (PORT_OF_CLIENT, port)
                return socket.create_connection(self._grpc, source_address=source)
        return socket.create_connection(self._grpc)

    def _move(self, end: _End, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and not end.closed:
                self._send(end, end.unsent)
            if events & selectors.EVENT_READ and not end.closed:
                data = end.sock.recv(_READ_BYTES)
                if not data:
                    self._close(end)
                    return
                self._send(end.other, data)
        except BlockingIOError:
            pass
        except OSError:
            self._close(end)

    def _send(self, end: _End, data: bytes) -> None:
        """Send as much as possible. Unsent data stops the reading from the other end."""
        sent = 0
        with contextlib.suppress(BlockingIOError):
            sent = end.sock.send(data)
        had, end.unsent = end.unsent, data[sent:]
        if had or end.unsent:
            # A new deadline after each progress, at the end of the order.
            self._unread.pop(end, None)
            if end.unsent:
                self._unread[end] = self._now() + self._request_seconds
            self._watch(end)
            self._watch(end.other)

    def _watch(self, end: _End) -> None:
        wanted = 0 if end.other.unsent else selectors.EVENT_READ
        if end.unsent:
            wanted |= selectors.EVENT_WRITE
        if wanted == end.watched:
            return
        if not end.watched:
            self._selector.register(end.sock, wanted, end)
        elif wanted:
            self._selector.modify(end.sock, wanted, end)
        else:
            self._selector.unregister(end.sock)
        end.watched = wanted

    def _close(self, end: _End) -> None:
        self._pairs -= not end.closed
        for each in (end, end.other):
            if each.watched:
                self._selector.unregister(each.sock)
                each.watched = 0
            each.closed = True
            self._unread.pop(each, None)
            each.sock.close()


def _refuse(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.send(_REFUSAL)
        connection.shutdown(socket.SHUT_WR)
        # Unread bytes would turn the end into a reset, which may outrun the reply.
        connection.recv(_READ_BYTES)


def _main() -> None:
    # Two files a client: more than what a shell allows by default.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = int(sys.argv[4])
    if files != resource.RLIM_INFINITY:
        # Without a free file the listener would stay readable, and the loop spin.
        most = min(most, max((files - _OTHER_FILES) // 2, 1))
    Relay(
        socket.socket(fileno=int(sys.argv[1])),
        socket.socket(fileno=int(sys.argv[2])),
        int(sys.argv[3]),
        max_connections=most,
        request_seconds=float(sys.argv[5]),
        taken=int(sys.argv[6]),
    ).run()


if __name__ == "__main__":
    _main()
