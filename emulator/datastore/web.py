"""HTTP/1.1 on accepted connections, each in a thread of its own."""

import contextlib
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from emulator.datastore.browsers import Gate
from emulator.datastore.http_body import BodyError, read_body
from emulator.datastore.http_rpcs import Reply

#: Method, path, content type and body to reply.
Answer = Callable[[str, str, str, bytes], Reply]

# "Limits": a request may have 10 MiB. The rest is room for the encoding around the entities.
MAX_REQUEST_BYTES = 16 * 1024 * 1024

_log = logging.getLogger(__name__)


class Web:
    """The HTTP/1.1 connections and their threads.

    Args:
        answer: called in the connection's thread.
        gate: refuses requests of foreign web pages.
    """

    def __init__(self, answer: Answer, gate: Gate) -> None:
        self.answer = answer
        self.gate = gate
        self._changed = threading.Condition()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._busy = 0
        self.stopping = False

    def take(self, connection: socket.socket) -> None:
        """Serve a connection until either side closes it."""
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="datastore-http", daemon=True
        )
        with self._changed:
            if self.stopping:
                connection.close()
                return
            self._connections[connection] = thread
        thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            _Handler(connection, ("", 0), self)  # type: ignore[arg-type]
        except OSError as error:
            _log.debug("a client disconnected: %s", error)
        except Exception:
            _log.exception("hanging up on a client")
        finally:
            with self._changed:
                del self._connections[connection]
                connection.close()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Mark a request in progress: `hang_up` waits for it."""
        with self._changed:
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()

    def hang_up(self, grace_seconds: float) -> None:
        """Finish requests in progress for at most that time, then end all connections."""
        with self._changed:
            self.stopping = True
            self._changed.wait_for(lambda: not self._busy, grace_seconds)
            for connection in self._connections:
                with contextlib.suppress(OSError):  # the client was faster
                    connection.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait for the threads to end, after `hang_up`."""
        with self._changed:
            threads = list(self._connections.values())
        for thread in threads:
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Web  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # a reply in one packet; flushed after each request

    def _serve(self) -> None:
        with self.server.answering():
            self._reply(*self._answer())
            self.wfile.flush()
        if self.server.stopping:
            self.close_connection = True

    # The method names that http.server expects.
    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815

    def handle_expect_100(self) -> bool:
        """Send "100 Continue", which the client waits for before it sends the body."""
        expected = super().handle_expect_100()
        self.wfile.flush()
        return expected

    def _answer(self) -> Reply:
        try:
            body = read_body(
                self.rfile,
                MAX_REQUEST_BYTES,
                coding=self.headers.get("Transfer-Encoding"),
                length=self.headers.get("Content-Length"),
            )
        except BodyError as error:
            self.close_connection = True
            return Reply(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())
        refusal = self.server.gate.refusal(self.headers)
        if refusal is not None:
            text = json.dumps({"error": refusal}) + "\n"
            return Reply(HTTPStatus.FORBIDDEN, "application/json", text.encode())
        method = "GET" if self.command == "HEAD" else self.command
        content_type = self.headers.get("Content-Type", "")
        try:
            return self.server.answer(method, self.path, content_type, body)
        except Exception as error:
            _log.exception("%s %s failed", self.command, self.path)
            text = f"The emulator failed: {error!r}\n"
            return Reply(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", text.encode())

    def _reply(self, status: HTTPStatus, content_type: str, body: bytes | Iterator[bytes]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if isinstance(body, bytes):
            self.send_header("Content-Length", str(len(body)))
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.command == "HEAD":
            return
        if isinstance(body, bytes):
            self.wfile.write(body)
            return
        for piece in filter(None, body):  # an empty chunk would mark the end
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - as inherited
        _log.debug(format, *arguments)
