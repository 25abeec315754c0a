"""Tasks on locks of real servers, cancelled at random: by asyncio, uvloop and anyio."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

import userlock
from tests.faults.conftest import UrlOf
from tests.servers import Memcached, lacking
from userlock import LockService
from userlock.events import Listeners
from userlock.lock.store import LeaseStore
from userlock.stores import MemcacheStore
from userlock.stores.urls import open_store

LOCKS = 20
TASKS = 200
CANCELLED = 80
#: Further tasks, each with a short time limit.
TIMED = 60


@pytest.fixture(params=["memcached", "redis", "cluster"])
def service(request: pytest.FixtureRequest, url_of: UrlOf, prefix: str) -> Iterator[LockService]:
    # A busy machine is not an outage.
    store: LeaseStore
    if request.param == "memcached":
        memcached: Memcached = request.getfixturevalue("memcached")
        store = MemcacheStore(memcached.address, prefix=prefix, connect_timeout=10, timeout=10)
    else:
        store = open_store(url_of(request.param, "&socket_timeout=10&socket_connect_timeout=10"))
    service = LockService(store, outage="fail", listeners=Listeners())
    userlock.configure(service=service)
    yield service
    service.close()


#: Runs a coroutine in an event loop.
Run = Callable[..., Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    try:
        found: Run = importlib.import_module(request.param).run
    except ImportError:
        lacking(f"{request.param} is needed: make")
    return found


def visits(locked: bool, run: Run = asyncio.run) -> tuple[list[int], list[int]]:
    """Let tasks visit the locks, and cancel some; return counted and finished visits by lock."""
    chance = random.Random(7)
    counts, finished = [0] * LOCKS, [0] * LOCKS

    async def count(lock: int) -> None:
        before = counts[lock]
        await asyncio.sleep(chance.uniform(0.0005, 0.004))
        counts[lock] = before + 1
        finished[lock] += 1

    async def visit(lock: int) -> None:
        if not locked:
            await count(lock)
            return
        async with userlock.global_lock(f"learner-{lock}", wait_timeout=50):
            await count(lock)

    async def timed(lock: int) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(chance.uniform(0, 0.01)):
                await visit(lock)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            locks = [chance.randrange(LOCKS) for _ in range(TASKS)]
            tasks = [group.create_task(visit(lock)) for lock in locks]
            for lock in locks[:TIMED]:
                group.create_task(timed(lock))
            for task in chance.sample(tasks, CANCELLED):
                await asyncio.sleep(chance.uniform(0, 0.003))
                task.cancel()

    run(asyncio.wait_for(work(), 60))
    return counts, finished


def test_each_visit_counts_once(service: LockService, run: Run) -> None:
    counts, finished = visits(locked=True, run=run)
    assert counts == finished
    assert sum(counts) >= TASKS - CANCELLED
    for lock in range(LOCKS):
        assert service.holder(f"learner-{lock}") is None
        assert service.waiters(f"learner-{lock}") == []


def test_without_the_lock_visits_are_lost() -> None:
    """The negative control."""
    counts, finished = visits(locked=False)
    assert counts != finished


def test_groups_of_anyio_that_fail_leave_no_lock(service: LockService) -> None:
    """anyio cancels a task again in each iteration of the event loop, until it ends."""
    chance = random.Random(1)

    async def use() -> None:
        async with userlock.global_lock("ann", wait_timeout=50):
            await anyio.sleep(0.001)

    async def work() -> None:
        for _ in range(20):
            with contextlib.suppress(BaseExceptionGroup):
                async with anyio.create_task_group() as group:
                    for _ in range(4):
                        group.start_soon(use)
                    await anyio.sleep(chance.random() * 0.006)
                    raise KeyError
            assert service.holder("ann") is None
            assert service.waiters("ann") == []

    asyncio.run(asyncio.wait_for(work(), 60))
