"""The servers and workers of one contestant, and the clients that send it requests.

Two worker processes serve the same app. A client that is told to come back (409, 423, 429, 500 to
504, no answer) does so, at the other worker, until it gets an answer or its patience ends.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sample_app.stack.children import Child
from sample_app.stack.ports import LOOPBACK

#: More than all time-outs and leases of the contestants.
PATIENCE_SECONDS = 15.0
_PAUSE_SECONDS = 0.3
_ANSWER_SECONDS = 60.0
_COME_BACK = frozenset({0, 409, 423, 425, 429, 500, 502, 503, 504})
MOST_AT_ONCE = 64


class NotHeld(Exception):
    """A fault did not happen, so that its outcome would mean nothing."""


class Answer(NamedTuple):
    """An answer to a client.

    Attributes:
        status: the HTTP status; 0 if the connection broke.
        body: the JSON body.
    """

    status: int
    body: Any = None

    @property
    def is_final(self) -> bool:
        return self.status not in _COME_BACK


@dataclasses.dataclass
class Running:
    """A request that is running, in a thread of its own.

    Attributes:
        pid: the process that serves it.
        answer: its future answer.
    """

    pid: int
    answer: concurrent.futures.Future[Answer]


class Stand:
    """One contestant while it runs.

    Args:
        provider_port: of the payment provider.
        ports: of the workers.
        children: all processes, the workers included.
        volatile: the server that loses its data when it is restarted, if there is one.
        reaps: whether the app has a page that removes what is no longer kept.
    """

    def __init__(
        self,
        provider_port: int,
        ports: tuple[int, int],
        children: list[Child],
        *,
        volatile: Child | None,
        reaps: bool,
    ) -> None:
        self._provider_port = provider_port
        self._ports = ports
        self._children = children
        self._volatile = volatile
        self._reaps = reaps
        self._threads = concurrent.futures.ThreadPoolExecutor(MOST_AT_ONCE)

    def close(self) -> None:
        self._threads.shutdown()

    # --- clients ----------------------------------------------------------------------------

    def send(self, reference: str, worker: int = 0, *, cents: int = 2000) -> Answer:
        """Send a request once. Its key is its reference."""
        body = json.dumps({"reference": reference, "cents": cents})
        headers = {"Idempotency-Key": reference, "Content-Type": "application/json"}
        try:
            status, said = _call(self._ports[worker], "POST", "/orders", body, headers)
        except (OSError, http.client.HTTPException):
            return Answer(0)
        return Answer(status, _json(said))

    def insist(self, reference: str, worker: int = 1) -> Answer:
        """Send a request until there is a final answer, or patience ends; return the last one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            answer = self.send(reference, worker)
            if answer.is_final or time.monotonic() > deadline:
                return answer
            time.sleep(_PAUSE_SECONDS)

    def begin(self, reference: str, worker: int = 0) -> concurrent.futures.Future[Answer]:
        """Send a request in a thread."""
        return self._threads.submit(self.send, reference, worker)

    def begin_and_hold(self, reference: str, point: str) -> Running:
        """Send a request, and hold its worker at a point of its work.

        Raises:
            NotHeld: no worker got there.
        """
        self._ask("/hold", {"point": point})
        answer = self.begin(reference)
        pid = int(self._ask("/held"))
        if pid <= 0:  # to which no signal may be sent: it would be to this process's own group
            raise NotHeld(f"no worker got to the point {point!r}")
        return Running(pid, answer)

    def at_once(self, reference: str, many: int) -> list[Answer]:
        """Send a request many times at once, to both workers in turn; return the answers."""
        start = threading.Barrier(many)

        def send(number: int) -> Answer:
            start.wait()
            return self.send(reference, number % 2)

        return list(self._threads.map(send, range(many)))

    # --- faults -----------------------------------------------------------------------------

    def release(self) -> None:
        """Let a worker that is held go on."""
        self._ask("/release")

    def kill_at(self, reference: str, point: str) -> Answer:
        """Send a request, and kill its worker at a point of its work."""
        held = self.begin_and_hold(reference, point)
        os.kill(held.pid, signal.SIGKILL)
        answer = held.answer.result(_ANSWER_SECONDS)
        self.release()
        if answer.status:
            raise NotHeld(f"a worker that was killed has answered {answer.status}")
        return answer

    @contextlib.contextmanager
    def paused_at(self, reference: str, point: str) -> Iterator[Running]:
        """Send a request, and stop its process for a block at a point of its work."""
        held = self.begin_and_hold(reference, point)
        os.kill(held.pid, signal.SIGSTOP)
        try:
            self.release()
            yield held
            if held.answer.done():
                raise NotHeld("a worker that was stopped has answered")
        finally:
            os.kill(held.pid, signal.SIGCONT)

    def set_mode(self, mode: str) -> None:
        """Let the provider `charge`, `refuse` or `fail`."""
        self._ask("/mode", {"mode": mode})

    def restart_volatile(self) -> None:
        """Kill the server in memory and start it again: its data is lost."""
        if self._volatile is not None:
            self._volatile.kill()
            self._volatile.start()
            self._volatile.wait_until_it_answers()

    def mend(self) -> None:
        """Restart workers that have died."""
        for child in self._children:
            if not child.running:
                child.start()
        for child in self._children:
            child.wait_until_it_answers()

    def reap(self) -> None:
        """Remove what is no longer kept, if the app does so itself."""
        if self._reaps:
            _call(self._ports[0], "POST", "/reap")

    # --- facts ------------------------------------------------------------------------------

    def facts(self, reference: str) -> tuple[int, list[str]]:
        """Return how often the provider was called for an order, and its charges."""
        said = self._ask("/facts", {"reference": reference})
        return said["calls"], said["charges"]

    def orders(self, reference: str) -> list[str]:
        """Return the charges of the orders that are stored."""
        _, said = _call(self._ports[1], "GET", f"/orders?reference={reference}")
        found: list[str] = json.loads(said)
        return found

    def _ask(self, path: str, document: Mapping[str, object] | None = None) -> Any:
        _, said = _call(self._provider_port, "POST", path, json.dumps(document or {}))
        return json.loads(said)


def answers(port: int) -> bool:
    """Return whether a worker serves its orders."""
    try:
        status, _ = _call(port, "GET", "/orders?reference=none", seconds=2)
    except (OSError, http.client.HTTPException):
        return False
    return status == 200


def _call(
    port: int,
    method: str,
    path: str,
    body: str = "",
    headers: Mapping[str, str] | None = None,
    *,
    seconds: float = _ANSWER_SECONDS,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=seconds)
    with contextlib.closing(connection):
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()


def _json(said: bytes) -> Any:
    try:
        return json.loads(said)
    except ValueError:
        return said.decode(errors="replace")
