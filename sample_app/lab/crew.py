"""Concurrent clients that post to one counter, and what they were told."""

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
        client: which client's.
        batch: its priority.
        asked: when its handler began.
        began: when it was in the critical section (for a transaction, of its last attempt);
            None if it never was.
        ended: when its handler was done.
        attempts: how often the critical section ran.
        status: what the client was told; 0 if no answer came.
        accepted: whether that it was done.
        degraded: whether it ran without memcached's word.
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

    @property
    def waited(self) -> float:
        """Until it was in the critical section for good, or was sent away."""
        return (self.ended if self.began is None else self.began) - self.asked


def send(
    plan: Plan, host: str, name: str, progress: Callable[[int], None] = lambda done: None
) -> list[Visit]:
    """Have all clients send their requests, and wait for the answers.

    Args:
        plan: what to run.
        host: the site's host and port.
        name: of the counter.
        progress: called with the number of answers so far, by several threads.
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
    """One request, on a connection of its own, so that none is ever sent twice."""
    path = f"/lab/bench/{plan.between.way}/{name}?hold_ms={plan.hold_ms}{'&batch' if batch else ''}"
    began = time.monotonic()
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("POST", path)
        answer = connection.getresponse()
        status, told = answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        status, told = 0, b""
    finally:
        connection.close()
    facts = json.loads(told) if status in (200, 409) else {}
    return Visit(
        client=number,
        batch=batch,
        # The same clock as the server's: both are on this machine.
        asked=facts.get("asked", began),
        began=facts.get("began"),
        ended=facts.get("ended", time.monotonic()),
        attempts=facts.get("attempts", 0),
        status=status,
        accepted=facts.get("accepted", False),
        degraded=facts.get("degraded", False),
    )


def count(plan: Plan, host: str, name: str) -> int:
    """What stands there in the end."""
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"/lab/bench/{plan.between.way}/{name}")
        told: int = json.loads(connection.getresponse().read())["count"]
        return told
    finally:
        connection.close()
