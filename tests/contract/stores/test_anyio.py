"""Task groups of anyio (Starlette's, FastAPI's) that fail while their tasks use a lock.

anyio cancels a task again in each iteration of the event loop, until it ends.
The loop never rests then, and threads of the process hardly run.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import types

import anyio
import pytest

import userlock
from tests.servers import RedisServer
from userlock.lock import tasks

_TRIES = 3


async def seconds_to_fail(service: userlock.LockService, groups: int = 60) -> float:
    """Return how long groups take to end after a failure, together."""
    chance, seconds = random.Random(1), 0.0

    async def use() -> None:
        async with userlock.global_lock("ann", wait_timeout=2) as lock:
            assert not lock.degraded
            await anyio.sleep(0.001)

    for _ in range(groups):
        failed = 0.0
        with contextlib.suppress(BaseExceptionGroup):
            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(use)
                await anyio.sleep(chance.random() * 0.006)
                failed = time.monotonic()
                raise KeyError
        seconds += time.monotonic() - failed
        assert service.holder("ann") is None
        assert service.waiters("ann") == []
    return seconds


def test_they_end_soon(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the negative control: the event loop does not make way for the threads."""
    service = userlock.LockService.from_url(f"{redis_server.url}?socket_timeout=5", outage="fail")
    userlock.configure(service=service)
    took: list[tuple[float, float]] = []
    with contextlib.closing(service):
        while not took or took[-1][1] < 2 * took[-1][0]:
            assert len(took) < _TRIES, took
            usual = asyncio.run(seconds_to_fail(service))
            with monkeypatch.context() as patch:
                patch.setattr(tasks, "time", types.SimpleNamespace(sleep=lambda seconds: None))
                took.append((usual, asyncio.run(seconds_to_fail(service))))
