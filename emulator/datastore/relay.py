"""A program that serves gRPC and HTTP/1.1 on one port.

    relay.py LISTENER EMULATOR GRPC_PORT      (two inherited file descriptors, a port)

gRPC's server accepts no existing connection, only a port. So this program owns the public port. It
connects each HTTP/2 connection to gRPC's own port and forwards bytes both ways. Any other
connection is handed over to the emulator unread.

    client ──▶ relay ── "PRI * HTTP/2.0 …" ──▶ bytes to and from gRPC's port
                     └─ anything else ───────▶ the connection itself, to the emulator

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

# HTTP/2 begins with "PRI * HTTP/2.0"; no method of HTTP/1.1 begins with these three.
_PREFACE = b"PRI"
_READ_BYTES = 256 * 1024
_LOOPBACK = "127.0.0.1"


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
    """

    def __init__(self, listener: socket.socket, emulator: socket.socket, grpc_port: int) -> None:
        self._listener = listener
        self._emulator = emulator
        self._grpc = (_LOOPBACK, grpc_port)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until the emulator closes its end."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._emulator, selectors.EVENT_READ)
        while True:
            for key, events in self._selector.select():
                if key.fileobj is self._emulator:
                    return  # the emulator never writes: this is its end
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _End):
                    self._move(key.data, events)
                elif isinstance(key.fileobj, socket.socket):
                    self._sort(key.fileobj)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the client has disconnected
        connection.setblocking(False)
        # The socket is readable once it has enough bytes to decide, or at its end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, len(_PREFACE))
        self._selector.register(connection, selectors.EVENT_READ)

    def _sort(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        try:
            begins = connection.recv(len(_PREFACE), socket.MSG_PEEK)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            if begins == _PREFACE:
                self._connect(connection)
                return
            if begins:
                connection.setblocking(True)  # the other side keeps this setting
                socket.send_fds(self._emulator, [b"."], [connection.fileno()])
        except OSError:
            pass  # the client has disconnected, or gRPC's server, which the client sees at once
        connection.close()

    def _connect(self, connection: socket.socket) -> None:
        client, server = _End(connection), _End(socket.create_connection(self._grpc))
        client.other, server.other = server, client
        self._watch(client)
        self._watch(server)

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
        for each in (end, end.other):
            if each.watched:
                self._selector.unregister(each.sock)
            each.closed = True
            each.sock.close()


def _main() -> None:
    # Two files a client: more than what a shell allows by default.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener, emulator, grpc_port = map(int, sys.argv[1:])
    Relay(socket.socket(fileno=listener), socket.socket(fileno=emulator), grpc_port).run()


if __name__ == "__main__":
    _main()
