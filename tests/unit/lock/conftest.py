"""A service over the memory store, with time driven by hand."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from random import Random

import pytest

import userlock
from tests.leases import MemoryLeases
from tests.simulation.watch import Watch
from tests.simulation.world import World
from tests.unit.lock.crowd import Crowd, gathering
from tests.unit.lock.pulse import Here
from userlock import HeldLock, LockService
from userlock.events import Event, Listeners, log_event
from userlock.lock.scope import LockScope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop, for a minute at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**given), 60))
    return True


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    """Provide a store whose waiters poll; test_wake_ups.py has one that wakes them."""
    return MemoryStore(clock=clock, wakes=False)


@pytest.fixture
def elsewhere(store: MemoryStore, clock: ManualClock) -> LockService:
    """Provide the service of another process: a release here is not handed over in this one."""
    return LockService(store, clock=clock, random=Random(2), listeners=Listeners())


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def service(store: MemoryStore, clock: ManualClock, events: list[Event]) -> LockService:
    return LockService(
        store, clock=clock, random=Random(1), listeners=Listeners([events.append, log_event])
    )


@pytest.fixture
def leases(store: MemoryStore, clock: ManualClock) -> MemoryLeases:
    return MemoryLeases(store, clock)


@pytest.fixture
def here(service: LockService, clock: ManualClock, store: MemoryStore, events: list[Event]) -> Here:
    return Here(service, clock, store, events)


@pytest.fixture
def configured(service: LockService) -> None:
    """Configure the service, for tests of the statements, which use the configured one."""
    userlock.configure(service=service)


@pytest.fixture
def scope(service: LockService) -> Iterator[LockScope]:
    with userlock.scope(service, request="POST /mine") as scope:
        yield scope


@pytest.fixture
def tenure(scope: LockScope) -> HeldLock:
    """Provide a lock with a heartbeat; some files override it."""
    return scope.acquire("ann", heartbeat=True)


@pytest.fixture
def world(clock: ManualClock, store: MemoryStore) -> Iterator[World]:
    with World(clock, Watch(store, clock)).running() as world:
        yield world


@pytest.fixture
def crowd(clock: ManualClock) -> Iterator[Crowd]:
    with gathering(clock) as crowd:
        yield crowd
