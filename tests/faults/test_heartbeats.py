"""A heartbeat in real time, in a process that dies."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import userlock
from tests.servers import MEMCACHED_LATE_SECONDS, Memcached

ROOT = Path(__file__).resolve().parents[2]


_HOLD = """
import sys, threading
import userlock
service = userlock.LockService.from_url(sys.argv[1])
with userlock.scope(service) as scope:
    tenure = scope.acquire("learner-1", heartbeat=sys.argv[2] == "beats", lock_timeout=2)
    print("held", flush=True)
    threading.Event().wait()
"""
#: The end of an unrenewed lease, in seconds.
OVER_SECONDS = 2 + MEMCACHED_LATE_SECONDS


@contextmanager
def a_holder(url: str, how: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that holds the lock until it is killed, with a heartbeat if it "beats"."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, url, how], stdout=subprocess.PIPE, cwd=ROOT
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()  # it would never end


@pytest.mark.slow
def test_a_process_that_dies_frees_its_lock_with_the_lease(
    memcached: Memcached, prefix: str
) -> None:
    """It is first held for longer than its lease, so that only the death can be the reason."""
    url = memcached.url(prefix)
    with a_holder(url, "beats") as process:
        service = userlock.LockService.from_url(url)
        with pytest.raises(userlock.LockTimeout):
            service.acquire("learner-1", wait_timeout=OVER_SECONDS)
        process.kill()
        process.wait()
    service.release(service.acquire("learner-1", wait_timeout=20))


@pytest.mark.slow
def test_without_a_heartbeat_a_living_process_loses_it(memcached: Memcached, prefix: str) -> None:
    """The negative control."""
    url = memcached.url(prefix)
    with a_holder(url, "does not"):
        service = userlock.LockService.from_url(url)
        service.release(service.acquire("learner-1", wait_timeout=OVER_SECONDS))
