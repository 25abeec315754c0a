"""Deadlocks of real processes, over the real memcached."""

from __future__ import annotations

import itertools
import os
import statistics
import time
import uuid
from typing import Any

import pytest

import userlock
from tests.servers import Memcached
from tests.system.processes import Rival, rivals

pytestmark = pytest.mark.slow

#: Of an interactive request that is first in line, in seconds.
ONE_POLL = 0.025
#: What two busy cores may add to it, for most of the rounds.
SCHEDULING = 0.3
#: What the detection replaces.
WAIT_TIMEOUT = 2.0
ROUNDS = 8


@pytest.fixture
def url(memcached: Memcached) -> str:
    return memcached.url(uuid.uuid4().hex)


def wait_until_in_line(service: userlock.LockService, lock_id: str, name: str) -> None:
    """And a little longer, so that whoever comes next is younger."""
    deadline = time.monotonic() + 10
    while name not in [waiter.request for waiter in service.waiters(lock_id)]:
        assert time.monotonic() < deadline
    # Records have times in milliseconds.
    now = time.time()
    while time.time() < now + 0.002:
        os.sched_yield()


def take_own(processes: list[Rival]) -> None:
    """Each takes the lock of its own name."""
    for each in processes:
        assert each.ask("take", each.name, 1)["got"] == each.name


def close_the_circle(
    processes: list[Rival], service: userlock.LockService, *, wait_timeout: float
) -> dict[str, Any]:
    """Each waits for the next one's lock, too; what the last one, and youngest, gets."""
    take_own(processes)
    for each, other in itertools.pairwise(processes):
        each.tell("take", other.name, 30)
        wait_until_in_line(service, other.name, each.name)
    return processes[-1].ask("take", processes[0].name, wait_timeout)


def all_others_are_served(processes: list[Rival]) -> None:
    """The last has given back what it had; each releases its locks when it has got its second."""
    for each, other in reversed(list(itertools.pairwise(processes))):
        assert each.answer()["got"] == other.name
        assert each.ask("release") == {"released": True}


def assert_told_within(seconds: float, found: list[float]) -> None:
    """A quarter of the rounds at least; the others as soon as they have had a core."""
    assert statistics.quantiles(found, n=4)[0] <= seconds
    assert max(found) <= seconds + SCHEDULING


def milliseconds(seconds: list[float]) -> str:
    return ", ".join(f"{each * 1000:.0f}" for each in seconds) + " ms"


@pytest.mark.parametrize("names", ["ab", "abc", "bca"])
def test_the_youngest_is_told_at_once_and_the_others_are_served(url: str, names: str) -> None:
    service = userlock.LockService.from_url(url)
    found = []
    with rivals(url, *names) as processes:
        for _ in range(ROUNDS):
            refused = close_the_circle(processes, service, wait_timeout=10)
            assert refused["error"] == "DeadlockDetected", refused
            found.append(refused["ended"] - refused["began"])
            all_others_are_served(processes)
    assert all(service.holder(name) is None for name in names)
    print(f"\n{len(names)} processes in a circle: the youngest is told after {milliseconds(found)}")
    assert_told_within(ONE_POLL, found)


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_when_all_begin_to_wait_at_once_one_gives_way(url: str, names: str) -> None:
    service = userlock.LockService.from_url(url)
    found = []
    with rivals(url, *names) as processes:
        for _ in range(ROUNDS):
            take_own(processes)
            for each, other in zip(processes, names[1:] + names[:1], strict=True):
                each.tell("take", other, 10)
                each.tell("release")
            answers = [each.answer() for each in processes]
            assert [each.answer() for each in processes] == [{"released": True}] * len(names)
            refused = [answer for answer in answers if "error" in answer]
            assert [answer["error"] for answer in refused] == ["DeadlockDetected"], answers
            found.append(refused[0]["ended"] - max(answer["began"] for answer in answers))
    assert all(service.holder(name) is None for name in names)
    print(f"\n{len(names)} processes at the same time: one is told after {milliseconds(found)}")
    assert_told_within(2 * ONE_POLL, found)


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_without_the_detection_only_a_time_out_ends_it(url: str, names: str) -> None:
    """The negative control: the same programme, in which nobody sees a circle."""
    service = userlock.LockService.from_url(url)
    with rivals(url, *names) as processes:
        for each in processes:
            assert each.ask("blind") == {"blind": True}
        refused = close_the_circle(processes, service, wait_timeout=WAIT_TIMEOUT)
        waited = refused["ended"] - refused["began"]
        assert refused["error"] == "LockTimeout", refused
        all_others_are_served(processes)
    print(f"\n{len(names)} processes without the detection: a time-out after {waited:.2f} s")
    assert WAIT_TIMEOUT <= waited < WAIT_TIMEOUT + 1
