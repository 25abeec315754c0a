"""An exception at any line, on real servers: each lock is free again, or ends with its lease.

As tests/unit/lock/test_interrupts.py, which drives time by hand; with sockets and replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

import pytest

import userlock
from tests.faults.conftest import UrlOf
from tests.unit.lock.test_interrupts import Interrupt, Interrupter, quietly
from userlock import LockService, LockTimeout
from userlock.events import Listeners
from userlock.lock.scope import current, current_scope
from userlock.stores.urls import open_store

#: A lease of one second is over after this time, on every server.
_OVER_SECONDS = 6.5


@pytest.fixture(params=["memcached", "memcached, text", "redis"])
def url(request: pytest.FixtureRequest, url_of: UrlOf) -> str:
    kind, _, protocol = request.param.partition(", ")
    return url_of(kind, f"&protocol={protocol}" if protocol else "")


@pytest.fixture
def service(url: str) -> Iterator[LockService]:
    service = LockService(open_store(url), listeners=Listeners())
    userlock.configure(service=service)
    yield service
    service.close()


def in_a_thread(lock_id: str) -> None:
    with (
        userlock.global_lock(lock_id, lock_timeout=1, heartbeat=True) as lock,
        userlock.global_lock(lock_id),
    ):
        lock.extend(1)


def in_a_task(lock_id: str) -> None:
    async def work() -> None:
        async with userlock.global_lock(lock_id, lock_timeout=1, heartbeat=True):
            pass

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(work())


@quietly
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", [in_a_thread, in_a_task])
def test_each_lock_is_free_or_ends_with_its_lease(
    service: LockService, url: str, scenario: Callable[[str], None]
) -> None:
    interrupter = Interrupter(0)
    scenario("warm")
    with interrupter.tracing():
        scenario("counted")
    points = interrupter.count
    assert points > 100
    where = {}
    for at in range(1, points + 1):
        interrupter = Interrupter(at)
        with contextlib.suppress(Interrupt), interrupter.tracing():
            scenario(f"lock-{at}")
        where[f"lock-{at}"] = interrupter.where
        assert current_scope() is None, interrupter.where
        current.set(None)
    time.sleep(_OVER_SECONDS)
    elsewhere = LockService(open_store(url), listeners=Listeners())
    faults = []
    with contextlib.closing(elsewhere):
        for lock_id, place in where.items():
            try:
                elsewhere.acquire(lock_id, wait_timeout=0)
            except LockTimeout:
                faults.append(f"{place}: held for longer than its lease")
                continue
            with contextlib.suppress(LockTimeout), userlock.global_lock(lock_id, wait_timeout=0):
                faults.append(f"{place}: entered beside its holder")
    assert faults == []
