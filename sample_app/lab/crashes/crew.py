"""Concurrent clients that send each order until it is confirmed, as people and programs do."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sample_app.lab.plan import CrashPlan

#: The header of a request that is to kill its worker. A parameter would belong to the request that
#: is sent again, and an idempotency key is for one request.
DIE = "Lab-Die"
#: For one order, with all its repetitions. A worker that is killed within a transaction leaves its
#: locks in Datastore, for a minute.
_PATIENCE_SECONDS = 180.0
_TIMEOUT_SECONDS = 30.0
#: Before an order is sent again: a worker needs about a second to be there again.
_PAUSE_SECONDS = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """An order, as its client saw it.

    Attributes:
        customer: the customer's id.
        killed: whether the first request was to kill its worker.
        sent: number of requests.
        confirmed: whether the last reply confirmed the order.
    """

    customer: str
    killed: bool
    sent: int
    confirmed: bool


def send(
    plan: CrashPlan, way: str, host: str, run: str, progress: Callable[[], None] = lambda: None
) -> list[Sent]:
    """Have the clients send all orders, and wait for the replies.

    Args:
        plan: the plan of the run.
        way: the way of the bench endpoint.
        host: the site's host and port.
        run: the beginning of the customers' ids.
        progress: called after each order, by several threads.
    """

    def place(number: int) -> Sent:
        sent = _send(way, host, f"{run}-{number}", killed=plan.kills(number))
        progress()
        return sent

    with ThreadPoolExecutor(plan.clients) as pool:
        return list(pool.map(place, range(plan.orders)))


def _send(way: str, host: str, customer: str, *, killed: bool) -> Sent:
    ends = time.monotonic() + _PATIENCE_SECONDS
    sent = 0
    while True:
        die = {DIE: "yes"} if killed and not sent else {}
        confirmed = _post(
            host, f"/lab/crash/{way}/{customer}", {"Idempotency-Key": customer, **die}
        )
        sent += 1
        if confirmed or time.monotonic() > ends:
            return Sent(customer=customer, killed=killed, sent=sent, confirmed=confirmed)
        time.sleep(_PAUSE_SECONDS)


def _post(host: str, path: str, headers: dict[str, str]) -> bool:
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    with contextlib.closing(connection):
        try:
            connection.request("POST", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return False
    if 400 <= response.status < 500 and response.status != 409:  # another one does not help
        raise RuntimeError(f"the site refuses an order: {response.status} {body[:500]!r}")
    return response.status == 201


def is_stored(host: str, customer: str) -> bool:
    """Return whether the site has the customer's order."""
    connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
    with contextlib.closing(connection):
        connection.request("GET", f"/lab/crash/{customer}")
        return bool(json.loads(connection.getresponse().read())["stored"])
