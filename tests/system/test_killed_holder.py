"""A process that is killed while it holds a lock."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import userlock
from tests.leases import existing
from tests.servers import MEMCACHED_LATE_SECONDS
from tests.system.conftest import StartStack
from tests.system.load import FINISH, POINTS, Answer, call, learner, new_learner
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

THINK_MS = 1500
LEASE_SECONDS = 5


def test_the_learner_is_free_when_the_lease_ends_and_not_before(start_stack: StartStack) -> None:
    stack = start_stack(think_ms=THINK_MS, lease_seconds=LEASE_SECONDS)
    for name in ("ada", "bob"):
        new_learner(stack.app_url, name)
    service = userlock.LockService.from_url(f"memcache://{stack.memcached_address}?prefix=learn")

    with ThreadPoolExecutor(2) as pool:
        doomed: Future[Answer] = pool.submit(call, stack.app_url, "POST", FINISH.format("ada"))
        wait_until(lambda: service.holder("ada"))
        holder = existing(service.holder("ada"))
        taken = time.monotonic()
        victim = int(holder.process.rpartition("/")[2])
        assert victim in stack.worker_pids
        assert holder.request == f"POST {FINISH.format('ada')}"
        os.kill(victim, signal.SIGKILL)

        # Another learner's lock is not stuck, whichever process serves it.
        other = pool.submit(call, stack.app_url, "POST", FINISH.format("bob"))

        lease = service.acquire("ada", wait_timeout=30)
        waited = time.monotonic() - taken
        service.release(lease)
        assert doomed.exception() is not None, "its process was killed before it could answer"
        assert (other.result().status, other.result().lock) == (200, "free")

    print(f"\nkilled holder: free again after {waited:.2f} s (lease {LEASE_SECONDS} s)")
    assert LEASE_SECONDS - 0.2 <= waited <= LEASE_SECONDS + MEMCACHED_LATE_SECONDS

    assert learner(stack.app_url, "ada")["points"] == 0, "it was killed before its put"
    for name in ("ada", "bob"):
        answer = call(stack.app_url, "POST", FINISH.format(name))
        assert (answer.status, answer.lock) == (200, "free")
    assert learner(stack.app_url, "ada")["points"] == POINTS
    assert len(stack.worker_pids) == 2, "gunicorn has replaced it"
