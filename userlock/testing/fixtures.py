"""The plugin's fixtures. What they need is imported when one is used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from userlock.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from userlock.lock.held_lock import HeldLock
    from userlock.lock.service import LockService
    from userlock.testing.faults import LockFaults


@pytest.fixture
def userlock_clock() -> Clock:
    """The clock of `userlock_service`: the system's. To override with a `ManualClock`.

    With a manual clock nothing is waited for: a lock that is held elsewhere is
    `LockTimeout` at once, and a lease runs out when the test says so. In tests
    with several threads, that leaves those who wait no time.
    """
    return SYSTEM_CLOCK


@pytest.fixture
def userlock_service(userlock_clock: Clock) -> Iterator[LockService]:
    """A lock service in memory, which is the process's default for this test.

    Afterwards the one before it is, with the settings there were; and a scope
    that the test has left open is closed.
    """
    from userlock.lock.scope import current_scope, defaults, leave_scope
    from userlock.lock.service import LockService
    from userlock.stores.memory import MemoryStore

    before = defaults.service, defaults.settings, current_scope()
    service = LockService(MemoryStore(clock=userlock_clock), clock=userlock_clock)
    defaults.service = service
    yield service
    while (scope := current_scope()) is not None and scope is not before[2]:
        scope.close(failing=True)
        leave_scope(scope)
    defaults.service, defaults.settings = before[:2]
    service.close()


@pytest.fixture
def held_lock(userlock_service: LockService) -> Callable[..., AbstractContextManager[HeldLock]]:
    """`with held_lock(user_id):` holds a user's lock, as the caller of a function would."""
    from userlock.testing.locks import held_lock

    return functools.partial(held_lock, service=userlock_service)


@pytest.fixture
def allow_unlocked() -> Callable[..., AbstractContextManager[None]]:
    """`with allow_unlocked():` checks no write, also none by the application."""
    from userlock.testing.locks import allow_unlocked

    return allow_unlocked


@pytest.fixture
def userlock_faults(userlock_service: LockService) -> Iterator[LockFaults]:
    """Accidents: `lose_lease()`, `evict(user_id)`, `store_down()`, `drop_reply()`.

    A test whose `drop_reply` has dropped nothing at its end is an error.
    """
    from userlock.testing.faults import LockFaults

    faults = LockFaults(userlock_service)
    yield faults
    left = faults.to_come()
    if left:
        pytest.fail(
            f"userlock_faults.drop_reply({left[0]!r}) has dropped no reply: nobody asked for it",
            pytrace=False,
        )
