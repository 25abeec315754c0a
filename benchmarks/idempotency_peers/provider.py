"""The payment provider of all contestants: `python provider.py PORT`. Standard library alone.

It counts the charges of each order, and makes one charge for each key, however often it is asked.
It also holds workers: one that reports a point where it is expected waits for its release, so that
it can be killed there.

    POST /charge    {reference, cents, key}: a charge; 402 and 503 if so ordered
    POST /reach     {point, pid}: returns at once, unless a worker is held there
    POST /hold      {point}: hold the next worker that gets there
    POST /held      return the process id of the worker that is held, as soon as there is one
    POST /release   let it go on
    POST /mode      {mode}: `charge`, `refuse` or `fail`
    POST /facts     {reference}: the number of calls and the charges
"""

from __future__ import annotations

import http.server
import json
import sys
import threading
import time
from typing import Any

#: A provider takes its time, so that requests overlap.
_LATENCY_SECONDS = 0.2
_LONGEST_HOLD_SECONDS = 60


class Provider:
    """Charges, and the worker that is held. Thread-safe.

    Args:
        latency_seconds: the time that a charge takes.
    """

    def __init__(self, latency_seconds: float = 0.0) -> None:
        self._latency_seconds = latency_seconds
        self._changed = threading.Condition()
        self._mode = "charge"
        self._calls: list[str] = []
        self._charges: list[tuple[str, str]] = []
        self._by_key: dict[str, str] = {}
        self._point = ""
        self._held = 0

    def charge(self, asked: dict[str, Any]) -> tuple[int, object]:
        time.sleep(self._latency_seconds)
        reference, key = asked["reference"], asked.get("key")
        with self._changed:
            self._calls.append(reference)
            if self._mode == "refuse":
                return 402, {"error": "card declined"}
            if self._mode == "fail":
                return 503, {"error": "try again later"}
            known = self._by_key.get(key) if key else None
            if known is None:
                known = f"charge-{len(self._charges) + 1}"
                self._charges.append((reference, known))
                if key:
                    self._by_key[key] = known
            return 200, {"charge": known}

    def reach(self, asked: dict[str, Any]) -> tuple[int, object]:
        with self._changed:
            if asked["point"] != self._point:
                return 200, None
            self._point, self._held = "", asked["pid"]
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._held, _LONGEST_HOLD_SECONDS)
            return 200, None

    def hold(self, asked: dict[str, Any]) -> tuple[int, object]:
        with self._changed:
            self._point, self._held = asked["point"], 0
            return 200, None

    def held(self, _: dict[str, Any]) -> tuple[int, object]:
        with self._changed:
            self._changed.wait_for(lambda: self._held, _LONGEST_HOLD_SECONDS)
            return 200, self._held

    def release(self, _: dict[str, Any]) -> tuple[int, object]:
        with self._changed:
            self._point, self._held = "", 0
            self._changed.notify_all()
            return 200, None

    def mode(self, asked: dict[str, Any]) -> tuple[int, object]:
        with self._changed:
            self._mode = asked["mode"]
            return 200, None

    def facts(self, asked: dict[str, Any]) -> tuple[int, object]:
        reference = asked["reference"]
        with self._changed:
            charges = [charge for of, charge in self._charges if of == reference]
            return 200, {"calls": self._calls.count(reference), "charges": charges}


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def server(port: int) -> http.server.ThreadingHTTPServer:
    """Return a server of a new provider."""
    provider = Provider(_LATENCY_SECONDS)
    verbs = {
        f"/{each.__name__}": each
        for each in (
            *(provider.charge, provider.reach, provider.hold, provider.held),
            *(provider.release, provider.mode, provider.facts),
        )
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, said = verbs[self.path](asked)
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return _Server(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    server(int(sys.argv[1])).serve_forever()
