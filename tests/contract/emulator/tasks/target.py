"""An HTTP server that tasks are sent to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message as Headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: Headers
    body: bytes

    @property
    def task(self) -> str:
        return str(self.headers["X-CloudTasks-TaskName"])


class Target:
    """A server that notes requests, and answers each as it is told to."""

    def __init__(self, answer: Callable[[Received], int] = lambda _: 200) -> None:
        self.answer = answer
        self.headers: dict[str, str] = {}
        self.received: list[Received] = []
        self.most = 0
        self._inside = 0
        self._changed = threading.Condition()
        target = self

        class Handler(BaseHTTPRequestHandler):
            def _handle(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status = target._take(Received(self.command, self.path, self.headers, body))
                try:
                    self.send_response(status)
                    for name, value in target.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except OSError:
                    pass  # the attempt was cut off
                finally:
                    target._leave()

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                """Stay silent."""

        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            setattr(Handler, f"do_{method}", Handler._handle)

        class Server(ThreadingHTTPServer):
            request_queue_size = 1024
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}/do"

    def _take(self, received: Received) -> int:
        with self._changed:
            self._inside += 1
            self.most = max(self.most, self._inside)
            self.received.append(received)
            self._changed.notify_all()
        return self.answer(received)

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1

    def wait_for(self, count: int, timeout_seconds: float = 20.0) -> None:
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.received) >= count, timeout_seconds)
            assert arrived, f"{len(self.received)} of {count} requests"

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
