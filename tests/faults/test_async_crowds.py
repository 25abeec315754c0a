"""Tasks on locks of real servers, cancelled at random by asyncio and anyio, counted exactly."""

from __future__ import annotations

import asyncio
import contextlib
import random
import uuid
from collections.abc import Iterator

import anyio
import pytest

import userlock
from tests.servers import Memcached, RedisServer
from userlock import LockService
from userlock.events import Listeners
from userlock.stores import MemcacheStore
from userlock.stores.registry import open_store

LOCKS = 20
TASKS = 200
CANCELLED = 80


@pytest.fixture(params=["memcached", "redis"])
def service(
    request: pytest.FixtureRequest, memcached: Memcached, redis_server: RedisServer
) -> Iterator[LockService]:
    prefix = uuid.uuid4().hex
    # A busy machine is not an outage.
    store = (
        MemcacheStore(memcached.address, prefix=prefix, connect_timeout=10, timeout=10)
        if request.param == "memcached"
        else open_store(
            f"{redis_server.url}?prefix={prefix}&socket_timeout=10&socket_connect_timeout=10"
        )
    )
    service = LockService(store, outage="fail", listeners=Listeners())
    userlock.configure(service=service)
    yield service
    service.close()


def visits(locked: bool) -> tuple[list[int], list[int]]:
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

    async def work() -> None:
        tasks = [asyncio.create_task(visit(chance.randrange(LOCKS))) for _ in range(TASKS)]
        for task in chance.sample(tasks, CANCELLED):
            await asyncio.sleep(chance.uniform(0, 0.003))
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        odd = [each for each in ended if not isinstance(each, asyncio.CancelledError | None)]
        assert odd == []

    asyncio.run(asyncio.wait_for(work(), 60))
    return counts, finished


def test_each_visit_counts_once(service: LockService) -> None:
    counts, finished = visits(locked=True)
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
