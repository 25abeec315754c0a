"""The provider's HTTP server, for the loopback interface.

POST /charges   Idempotency-Key, {"cents": 2900, "reference": "…"}: 201, 400, 402, 503, nothing
GET  /          the mood and all keys
PUT  /mood      {"mood": "loses-reply"}
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sample_app.payment_provider.ledger import Fate, Ledger, Mood, Reply

LOOPBACK = "127.0.0.1"
_MOST_BYTES = 500
#: The longest silence of a request that gets no answer. Clients give up much sooner.
_SILENCE_SECONDS = 20.0


class Server(ThreadingHTTPServer):
    """The server, with its ledger."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.ledger = Ledger()
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        """Return its URL, without a slash at the end."""
        return f"http://{LOOPBACK}:{self.server_address[1]}"

    def server_close(self) -> None:
        """Stop, and let go of all requests."""
        self.stopping.set()
        super().server_close()


class _Handler(BaseHTTPRequestHandler):
    timeout = 30
    server: Server

    def do_GET(self) -> None:
        self._send(Reply(200, self.server.ledger.as_json()))

    def do_PUT(self) -> None:
        try:
            self.server.ledger.become(Mood(self._body()["mood"]))
        except (KeyError, ValueError):
            self._send(Reply(400, {"error": f"mood is one of {', '.join(Mood)}"}))
        else:
            self._send(Reply(200, {}))

    def do_POST(self) -> None:
        key = self.headers.get("Idempotency-Key", "")
        try:
            body = self._body()
            cents, reference = int(body["cents"]), str(body["reference"])
        except (KeyError, TypeError, ValueError):
            key = ""
        if not key or cents <= 0 or len(key) > 255:
            self._send(Reply(400, {"error": "Idempotency-Key, cents and reference are needed"}))
        else:
            self._send(self.server.ledger.charge(key, cents, reference))

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= _MOST_BYTES:
            raise ValueError("too long")
        body = json.loads(self.rfile.read(length))
        if not isinstance(body, dict):
            raise ValueError("not an object")
        return body

    def _send(self, reply: Reply) -> None:
        self.close_connection = True
        if reply.fate is not Fate.ANSWERED:
            if reply.fate is Fate.HANGS:
                self.server.stopping.wait(_SILENCE_SECONDS)
            return  # the connection ends without a reply
        body = json.dumps(reply.document).encode()
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
