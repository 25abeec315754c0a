"""Concurrent clients that post to one counter, and the replies they get."""

from __future__ import annotations

import dataclasses
import http.client
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sample_app.lab.plan import Plan

_TIMEOUT_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Visit:
    """One request. Times in seconds, on one clock.

    Attributes:
        client: number of the client.
        batch: whether it is batch work.
        asked: start of its handler.
        began: start of the critical section (for a transaction, of its last attempt);
            None if it never began.
        ended: end of its handler.
        attempts: number of runs of the critical section.
        status: HTTP status of the reply; 0 if there was none.
        accepted: whether the reply confirmed the change.
        degraded: whether it ran with a degraded lease.
        count: the count that it wrote, or tried to; None if it did not get so far.
    """

    client: int
    batch: bool
    asked: float
    began: float | None
    ended: float
    attempts: int
    status: int
    accepted: bool
    degraded: bool
    count: int | None = None

    @property
    def waited(self) -> float:
        """Return the time until its final critical section began, or until it was refused."""
        return (self.ended if self.began is None else self.began) - self.asked


def send(
    plan: Plan, host: str, name: str, progress: Callable[[int], None] = lambda done: None
) -> list[Visit]:
    """Have all clients send their requests, and wait for the replies.

    Args:
        plan: the plan of the run.
        host: the site's host and port.
        name: the counter's name.
        progress: called with the number of replies so far, by several threads.
    """
    together = threading.Barrier(plan.clients)
    counted = threading.Lock()
    done = 0

    def client(number: int) -> list[Visit]:
        nonlocal done
        batch = number >= plan.clients - plan.batch_clients
        visits = []
        together.wait(30)
        for _ in range(plan.requests):
            visits.append(_visit(plan, host, name, number, batch=batch))
            with counted:
                done += 1
                so_far = done
            progress(so_far)
        return visits

    with ThreadPoolExecutor(plan.clients) as pool:
        return [visit for visits in pool.map(client, range(plan.clients)) for visit in visits]


def _visit(plan: Plan, host: str, name: str, number: int, *, batch: bool) -> Visit:
    """Send one request on a connection of its own, so that no request is ever sent twice."""
    path = f"/lab/bench/{plan.between.way}/{name}?hold_ms={plan.hold_ms}{'&batch' if batch else ''}"
    began = time.monotonic()
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("POST", path)
        answer = connection.getresponse()
        status, body = answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        status, body = 0, b""
    finally:
        connection.close()
    facts = json.loads(body) if status in (200, 409) else {}
    return Visit(
        client=number,
        batch=batch,
        # The same clock as the server's, which is on this machine.
        asked=facts.get("asked", began),
        began=facts.get("began"),
        ended=facts.get("ended", time.monotonic()),
        attempts=facts.get("attempts", 0),
        status=status,
        accepted=facts.get("accepted", False),
        degraded=facts.get("degraded", False),
        count=facts.get("count"),
    )


def count(plan: Plan, host: str, name: str) -> int:
    """Return the final count."""
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"/lab/bench/{plan.between.way}/{name}")
        stored: int = json.loads(connection.getresponse().read())["count"]
        return stored
    finally:
        connection.close()
