"""A web server that notes the requests that it gets, as a target of Cloud Tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Request(NamedTuple):
    """A request."""

    path: str
    headers: Message
    body: str


class Target:
    """The server.

    Attributes:
        url: without a path.
        requests: until now.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []


@contextmanager
def target() -> Iterator[Target]:
    """Provide a server, in threads."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            found.requests.append(Request(self.path, self.headers, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 100

    server = Server(("127.0.0.1", 0), Handler)
    found = Target(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
