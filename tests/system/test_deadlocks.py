"""Deadlocks of real processes, over the real memcached."""

from __future__ import annotations

import itertools
import os
import time
import uuid
from typing import Any

import pytest

import userlock
from tests.servers import Memcached
from tests.system.processes import Rival, rivals

pytestmark = pytest.mark.slow

#: The timeout that would end the wait without the detection.
WAIT_TIMEOUT = 2.0
ROUNDS = 3


@pytest.fixture
def url(memcached: Memcached) -> str:
    return memcached.url(uuid.uuid4().hex)


def wait_until_queued(service: userlock.LockService, lock_id: str, name: str) -> None:
    """Wait until it is queued, and a little longer, so that the next one is younger."""
    deadline = time.monotonic() + 10
    while name not in [waiter.request for waiter in service.waiters(lock_id)]:
        assert time.monotonic() < deadline
    # Records have times in milliseconds.
    now = time.time()
    while time.time() < now + 0.002:
        os.sched_yield()


def take_own(processes: list[Rival]) -> None:
    """Let each process take the lock of its own name."""
    for each in processes:
        assert each.ask("take", each.name, 1)["got"] == each.name


def close_the_cycle(
    processes: list[Rival], service: userlock.LockService, *, wait_timeout: float
) -> dict[str, Any]:
    """Let each wait for the next one's lock; return the answer to the last, youngest one."""
    take_own(processes)
    for each, other in itertools.pairwise(processes):
        each.tell("take", other.name, 30)
        wait_until_queued(service, other.name, each.name)
    return processes[-1].ask("take", processes[0].name, wait_timeout)


def all_others_are_served(processes: list[Rival]) -> None:
    """Check that each gets its second lock, after the last one has released its own."""
    for each, other in reversed(list(itertools.pairwise(processes))):
        assert each.answer()["got"] == other.name
        assert each.ask("release") == {"released": True}


@pytest.mark.parametrize("names", ["ab", "bca"])
def test_the_youngest_gets_the_error_at_once_and_the_others_are_served(
    url: str, names: str
) -> None:
    service = userlock.LockService.from_url(url)
    with rivals(url, *names) as processes:
        for _ in range(ROUNDS):
            refused = close_the_cycle(processes, service, wait_timeout=10)
            assert refused["error"] == "DeadlockDetected", refused
            all_others_are_served(processes)
    assert all(service.holder(name) is None for name in names)


def test_without_the_detection_only_a_time_out_ends_it(url: str) -> None:
    """The negative control: the same program, without the detection."""
    service = userlock.LockService.from_url(url)
    with rivals(url, *"abc") as processes:
        for each in processes:
            assert each.ask("blind") == {"blind": True}
        refused = close_the_cycle(processes, service, wait_timeout=WAIT_TIMEOUT)
        assert refused["error"] == "LockTimeout", refused
        all_others_are_served(processes)
