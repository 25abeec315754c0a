"""Provide the plugin's fixtures. The imports that a fixture needs happen when it is used."""

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
    """Return the clock of `userlock_service`: the system's. Override it with a `ManualClock`.

    With a manual clock nothing waits: a lock that is held elsewhere raises `LockTimeout` at once,
    and a lease runs out when the test advances the clock. Waiting threads have no time to get one.
    """
    return SYSTEM_CLOCK


@pytest.fixture
def userlock_service(userlock_clock: Clock) -> Iterator[LockService]:
    """Return a lock service in memory, the default of the process during this test.

    Afterwards the default and the settings are as before, and a scope that is left open is closed.
    """
    import userlock.ids as ids
    from userlock.lock.configuration import defaults
    from userlock.lock.scope import current_scope, leave_scope
    from userlock.lock.service import LockService
    from userlock.stores.memory import MemoryStore

    before = defaults.service, defaults.settings, current_scope()
    form = ids.in_use()
    service = LockService(MemoryStore(clock=userlock_clock), clock=userlock_clock)
    defaults.service = service
    yield service
    while (scope := current_scope()) is not None and scope is not before[2]:
        scope.close(failing=True)
        leave_scope(scope)
    defaults.service, defaults.settings = before[:2]
    ids.use(form)
    service.close()


@pytest.fixture
def held_lock(userlock_service: LockService) -> Callable[..., AbstractContextManager[HeldLock]]:
    """Return a context manager: `with held_lock(user_id):` holds a user's lock for a block."""
    from userlock.testing.locks import held_lock

    return functools.partial(held_lock, service=userlock_service)


@pytest.fixture
def allow_unlocked() -> Callable[..., AbstractContextManager[None]]:
    """Return a context manager: `with allow_unlocked():` checks no write inside the block."""
    from userlock.testing.locks import allow_unlocked

    return allow_unlocked


@pytest.fixture
def userlock_faults(userlock_service: LockService) -> Iterator[LockFaults]:
    """Return faults: `lose_lease()`, `evict(user_id)`, `store_down()`, `drop_reply()`.

    A test whose `drop_reply` has dropped no reply at its end fails.
    """
    from userlock.testing.faults import LockFaults

    faults = LockFaults(userlock_service)
    yield faults
    pending = faults.to_come()
    if pending:
        pytest.fail(
            f"userlock_faults.drop_reply({pending[0]!r}) has dropped no reply: the code under "
            "test has not asked for one",
            pytrace=False,
        )
