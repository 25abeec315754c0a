"""A run: a site of its own, the crew, the outcome."""

from __future__ import annotations

import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sample_app.lab import crew, outcome
from sample_app.lab.plan import Between, Plan
from sample_app.stack import Stack


def run(plan: Plan, progress: Callable[[str, int], None]) -> dict[str, Any]:
    """Execute a plan and return its result, as from `outcome.document`.

    Args:
        plan: the plan of the run.
        progress: called with the present step and the number of replies, from several threads.

    Raises:
        ChildDied, PortTaken: a server could not be started.
    """
    progress("starting", 0)
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        stack = Stack(
            concurrency_mode=plan.mode,
            lab=True,
            # As many as there are clients, so that no request waits for a thread.
            threads=max(plan.clients, 4),
            log_dir=Path(folder),
        )
        with stack:
            name = f"lab-{secrets.token_hex(4)}"
            killing = _Killing(stack, plan)

            def on_answer(done: int) -> None:
                killing.after(done)
                progress("running", done)

            visits = crew.send(plan, stack.site_address, name, on_answer)
            stored = crew.count(plan, stack.site_address, name)
    figures = outcome.Outcome.of(visits, stored)
    return outcome.document(plan, visits, figures, killing.at)


class _Killing:
    """A hook that kills memcached once during the run, if the plan says so."""

    def __init__(self, stack: Stack, plan: Plan) -> None:
        self._stack = stack
        wanted = plan.between is Between.LOCK_WITHOUT_MEMCACHED
        self._after = plan.in_all // 3 if wanted else plan.in_all + 1
        self._once = threading.Lock()
        #: The time when it was done, on the clock of the visits.
        self.at: float | None = None

    def after(self, done: int) -> None:
        if done >= self._after and self._once.acquire(blocking=False):
            self._stack.memcached.kill()
            self.at = time.monotonic()
