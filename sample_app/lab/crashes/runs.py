"""A run: a site of its own for each protection, the crew, the outcome."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sample_app.lab.crashes import crew, outcome
from sample_app.lab.crashes.crew import Sent
from sample_app.lab.crashes.outcome import Order
from sample_app.lab.plan import CrashPlan
from sample_app.payment_provider import client
from sample_app.stack import Stack

#: The lease of a killed worker runs out so soon; until then its order waits.
_LEASE_SECONDS = 2
#: For jobs of which the engine never heard, or whose worker was killed as well: the relay looks
#: every 20 s at the latest, their locks run out after 10 s, and they are tried later and later.
_SETTLING_SECONDS = 150.0
_PAUSE_SECONDS = 0.2


def run(plan: CrashPlan, progress: Callable[[str, int], None]) -> dict[str, Any]:
    """Execute a plan without the library's protection and with it, and return the result.

    Args:
        plan: the plan of the run.
        progress: called with the present step and the number of orders that are confirmed, from
            several threads.

    Raises:
        ChildDied, PortTaken: a server could not be started.
    """
    done = 0
    counting = threading.Lock()

    def one_more() -> None:
        nonlocal done
        with counting:
            done += 1
            so_far = done
        progress("running", so_far)

    progress("starting", 0)
    measured = {way: _measured(plan, way, one_more) for way in plan.scenario.ways}
    return outcome.document(plan, measured)


def _measured(plan: CrashPlan, way: str, one_more: Callable[[], None]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        stack = Stack(
            lab=True,
            relay=way == "outbox",
            lease_seconds=_LEASE_SECONDS,
            threads=max(plan.clients, 4),
            log_dir=Path(folder),
        )
        with stack:
            began = time.monotonic()
            name = f"lab-{secrets.token_hex(8)}"  # an Idempotency-Key has 20 characters or more
            sent = crew.send(plan, way, stack.site_address, name, one_more)
            if way == "outbox":
                _settle(stack, sent)
            orders = _orders(stack, sent)
            return outcome.figures(orders, time.monotonic() - began)


def _settle(stack: Stack, sent: Sequence[Sent]) -> None:
    """Wait until all jobs have run, or should have."""
    ends = time.monotonic() + _SETTLING_SECONDS
    while time.monotonic() < ends:
        effects = _effects(stack)
        if all(effects[each.customer] for each in sent):
            return
        time.sleep(_PAUSE_SECONDS)


def _orders(stack: Stack, sent: Sequence[Sent]) -> list[Order]:
    effects = _effects(stack)
    return [
        Order(
            killed=each.killed,
            sent=each.sent,
            confirmed=each.confirmed,
            stored=crew.is_stored(stack.site_address, each.customer),
            effects=effects[each.customer],
        )
        for each in sent
    ]


def _effects(stack: Stack) -> Counter[str]:
    """Return how often the other service did its part, by customer."""
    keys = client.state(stack.provider_url)["keys"]
    return Counter(each["reference"] for each in keys if each["status"] == 201)
