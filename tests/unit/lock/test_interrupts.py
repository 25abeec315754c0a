"""An exception at any line of the library leaves the lock free, or to the end of its lease.

As a signal handler raises it (Celery's soft time limit, RQ's time-outs, Ctrl-C): at each line, each
call and each return from a C function of a scenario, one after the other. Afterwards the lock is
not entered again without the store, not renewed, and no scope is left behind.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from types import FrameType
from typing import Any

import pytest

import userlock
from tests.leases import dead_waiter
from tests.unit.lock.pulse import live
from userlock import LockService, LockTimeout
from userlock.events import Listeners
from userlock.lock import held_lock, scope
from userlock.lock.scope import current_scope
from userlock.stores import MemoryStore
from userlock.testing import ManualClock
from userlock.waits import blocking

LEASE = 5.0
_POINTS = "call", "line", "c_return"
#: How often it raises at the same line of one run: a waiter polls many times.
_OFTEN = 3
#: Longer than any lease here, and the grace of the store.
LONG = 100.0
_OURS = str(userlock.__path__[0]) + "/"
#: A store for tests, and a clock.
_NOT_OURS = ("/stores/memory.py", "/testing/clock.py")


class Interrupt(BaseException):
    """Raised by the signal handler."""


class Interrupter:
    """Raises at one line of the library. Counts them."""

    def __init__(self, at: int) -> None:
        self.count = 0
        self.where = ""
        self._at = at
        self._seen = collections.Counter[object]()

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS) or name.endswith(_NOT_OURS):
            return None
        point = frame.f_code, frame.f_lineno, event
        self._seen[point] += event in _POINTS
        if 0 < self._seen[point] <= _OFTEN and event in _POINTS:
            self.count += 1
            if self.count == self._at:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} ({event})"
                _trace(None, None)
                raise Interrupt
        return self

    def _profile(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "c_return":  # where a `with` has left a mutex, and its line is not over
            self(frame, event, argument)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        _trace(self, self._profile)
        try:
            yield
        finally:
            _trace(None, None)


def _trace(trace: Any, profile: Any) -> None:
    sys.settrace(trace)
    sys.setprofile(profile)


Scenario = Callable[[LockService], object]


def a_block(_: LockService) -> None:
    with userlock.global_lock("ann", lock_timeout=LEASE):
        pass


def a_heartbeat(_: LockService) -> None:
    with userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True):
        pass


def a_kept_object(_: LockService) -> None:
    with _KEPT:
        pass


_KEPT = userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True)


@userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True)
def a_decorated_function(_: LockService) -> None:
    pass


def nested(_: LockService) -> None:
    with (
        userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True),
        userlock.global_lock("bob", lock_timeout=LEASE, heartbeat=True),
        userlock.global_lock("ann"),
    ):
        pass


def several(_: LockService) -> None:
    with userlock.global_locks(["bob", "ann"], lock_timeout=LEASE, heartbeat=True):
        pass


def in_a_scope(_: LockService) -> None:
    with userlock.scope(), userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True):
        pass


def acquired_in_a_scope(_: LockService) -> None:
    with userlock.scope():
        userlock.acquire_lock("ann", lock_timeout=LEASE, heartbeat=True)
        userlock.release_lock("ann")


def caught_in_a_scope(service: LockService) -> None:
    """A time limit around one call, after which the request goes on."""
    with userlock.scope():
        try:
            userlock.acquire_lock("ann", lock_timeout=LEASE)
        except Interrupt:
            _trace(None, None)
            with contextlib.suppress(LockTimeout):  # it is held to the end of the scope, or free
                service.acquire("ann", wait_timeout=0, lock_timeout=LEASE)
                with contextlib.suppress(LockTimeout), userlock.global_lock("ann", wait_timeout=0):
                    pytest.fail("it is entered beside its holder")


def left_to_the_scope(_: LockService) -> None:
    with userlock.scope():
        userlock.acquire_lock("ann", lock_timeout=LEASE, heartbeat=True)


def extended(_: LockService) -> None:
    with userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True) as lock:
        lock.extend(2 * LEASE)


def fenced(_: LockService) -> None:
    with userlock.global_lock("ann", lock_timeout=LEASE) as lock:
        assert lock.fence


def released_by_hand(_: LockService) -> None:
    with userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True) as lock:
        lock.release()


def yielded(service: LockService) -> None:
    with userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True) as lock:
        dead_waiter(service, "ann")
        lock.yield_to_waiters()


def contended(service: LockService) -> None:
    other = LockService(service.store, clock=service.clock, listeners=Listeners())
    lease = other.acquire("ann", lock_timeout=LEASE)
    assert isinstance(service.clock, ManualClock)
    service.clock.after(1, lambda: other.release(lease))
    with userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True):
        pass


def timed_out(service: LockService) -> None:
    other = LockService(service.store, clock=service.clock, listeners=Listeners())
    other.acquire("ann", lock_timeout=LEASE)
    with (
        contextlib.suppress(LockTimeout),
        userlock.global_lock("ann", lock_timeout=LEASE, wait_timeout=1),
    ):
        pass


QUICK: list[Scenario] = [a_block, acquired_in_a_scope, caught_in_a_scope, extended]
SCENARIOS: list[Scenario] = [
    *QUICK,
    *(a_heartbeat, a_kept_object, a_decorated_function, nested, several, in_a_scope),
    *(left_to_the_scope, fenced, released_by_hand, yielded, contended, timed_out),
]


def service_on(clock: ManualClock) -> LockService:
    service = LockService(
        MemoryStore(clock=clock, wakes=False),
        clock=clock,
        random=Random(1),
        listeners=Listeners(),
    )
    userlock.configure(service=service)
    return service


def faults_of(service: LockService) -> list[str]:
    """Return what an interrupt has left behind that must not be."""
    clock = service.clock
    assert isinstance(clock, ManualClock)
    faults = []
    if current_scope() is not None:
        faults.append("a scope is the current one")
    if blocking.now():
        faults.append("tasks of this thread would block its event loop")
    if service.local_waiters.tried:
        faults.append("later callers expect a queue, and pay for it")
    live(service, clock, LONG)
    elsewhere = LockService(service.store, clock=clock, random=Random(2), listeners=Listeners())
    for lock_id in ("ann", "bob"):
        try:
            elsewhere.acquire(lock_id, wait_timeout=0)
        except LockTimeout:
            faults.append(f"{lock_id} is held for longer than its lease")
            continue
        with contextlib.suppress(LockTimeout), userlock.global_lock(lock_id, wait_timeout=0):
            faults.append(f"{lock_id} is entered beside its holder")
    return faults


def sweep(run: Callable[[LockService], object]) -> tuple[int, list[str]]:
    """Interrupt a scenario at each line; return their number, and the faults."""
    clock = ManualClock()
    interrupter = Interrupter(0)
    service = service_on(clock)
    with interrupter.tracing():
        run(service)
    faults = faults_of(service)
    for at in range(1, interrupter.count + 1):
        interrupter = Interrupter(at)
        service = service_on(ManualClock())
        try:
            with interrupter.tracing():
                run(service)
        except Interrupt:
            pass
        faults += [f"{interrupter.where}: {fault}" for fault in faults_of(service)]
        scope.current.set(None)  # so that the next one is not disturbed
    return interrupter.count, faults


# (What the interpreter closes while the exception is raised cannot let it through.)
quietly = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
long = [pytest.mark.slow, pytest.mark.timeout(900)]


@quietly
@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, id=each.__name__, marks=() if each in QUICK else long)
        for each in SCENARIOS
    ],
)
def test_in_a_thread(scenario: Scenario) -> None:
    lines, faults = sweep(scenario)
    assert lines > 100, "the library was run"
    assert faults == []


# --- tasks ----------------------------------------------------------------------------------


async def a_block_of_a_task() -> None:
    async with userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True):
        pass


async def nested_in_a_task() -> None:
    async with (
        userlock.global_lock("ann", lock_timeout=LEASE, heartbeat=True),
        userlock.global_lock("bob", lock_timeout=LEASE),
        userlock.global_lock("ann"),
    ):
        pass


async def several_in_a_task() -> None:
    async with userlock.global_locks(["ann", "bob"], lock_timeout=LEASE, heartbeat=True):
        pass


@quietly
@pytest.mark.parametrize(
    "work",
    [
        a_block_of_a_task,
        pytest.param(nested_in_a_task, marks=long),
        pytest.param(several_in_a_task, marks=long),
    ],
)
def test_in_a_task(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop:

        def run(_: LockService) -> None:
            loop.run_until_complete(work())

        lines, faults = sweep(run)
    assert lines > 100
    assert faults == []


# --- the negative controls ------------------------------------------------------------------


def test_a_count_alone_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends that are over count as before."""
    monkeypatch.setattr(held_lock.HeldLock, "_blocks", property(lambda lock: len(lock._ends)))
    monkeypatch.setattr(
        scope.LockScope, "_has_blocks", property(lambda scope: bool(scope._ends)), raising=True
    )
    _, faults = sweep(a_heartbeat)
    assert any("held for longer" in fault for fault in faults)


def test_without_undoing_a_scope_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope.LockScope, "_is_over", property(lambda scope: scope._closed))
    _, faults = sweep(a_block)
    assert any("current" in fault for fault in faults)
