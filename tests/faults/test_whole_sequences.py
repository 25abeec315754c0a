"""Take, wait, extend, release: a fault at each packet of the whole sequence.

    A (through the proxy)          B (past it)
    takes the lock
                                   joins the queue
    extends its lease
    releases it
                                   is granted it, works
    waits for it again
                                   releases it
    is granted it, releases it

With a fault at any packet of A: no two confirmed leases overlap, B is served and finds its lease
untouched, A waits no longer than documented, and in the end the lock is free.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from tests.faults.kinds import KINDS, AnyFault, Kind, each_fault, kind_of
from tests.faults.proxy import Fault
from tests.faults.tidy import tidy_up
from userlock import LockService, LockServiceUnavailable
from userlock.lock.lease import Granted, Lease, Lost, Released
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import Record
from userlock.lock.store import LeaseStore
from userlock.waits import run

_Result = TypeVar("_Result")

LOCK = "ann"
#: The number of A's packets with a fault: later ones are only reads.
STEPS = 13
LEASE_SECONDS = 1.0
#: The time of B's work.
HOLD_SECONDS = 0.03
#: One command without a reply, a check of its outcome (with a new connection each time), and a
#: margin for a busy machine.
MOST_SECONDS = 2 * (0.1 + 0.3 + 0.1) + 0.5
_AT_ONCE = 16
_TIMES = 3


class TooSlow(AssertionError):
    """A step of A that took longer than documented, as any may on a busy machine."""


class Sequence:
    """One run of the whole sequence."""

    def __init__(self, store: LeaseStore, direct: LeaseStore, *, optimistic: bool) -> None:
        outage = "optimistic" if optimistic else "fail"
        self.a = LockService(store, outage=outage)
        self.b = LockService(direct, outage="fail")
        self._direct = direct
        self._inside: list[str] = []
        self._until: dict[str, float] = {}
        self._mutex = threading.Lock()

    def run(self) -> None:
        with ThreadPoolExecutor(1) as pool:
            first = self._acquire(0)
            b = pool.submit(self._b)
            self._until_somebody_waits(b.done)
            if first is not None:
                first = self._extend(first)
                self._release(first)
            second = self._acquire(5)
            if second is not None:
                self._release(second)
            self.resume()
            b.result()

    def resume(self) -> None:
        """Continue to use A's service, which sends its pending releases."""
        with contextlib.suppress(LockServiceUnavailable):  # the breaker may still be open
            tidy_up(self.a)

    def _b(self) -> None:
        lease = self.b.acquire(LOCK, wait_timeout=10, lock_timeout=30)
        self._enter("B", lease)
        time.sleep(HOLD_SECONDS)
        self._leave("B")
        outcome = run(self.b.give_back, lease)
        assert outcome == Released(), f"B's lease was touched: {outcome}"

    def _until_somebody_waits(self, done: Callable[[], bool]) -> None:
        while not done():
            stored = self._direct.read(LOCK)
            if stored is not None and not Record(stored).empty:
                return
            time.sleep(0.003)

    # --- A's steps, each within its time ------------------------------------------------------

    def _acquire(self, wait: float) -> Lease | None:
        def do() -> Lease | None:
            try:
                return self.a.acquire(LOCK, wait_timeout=wait, lock_timeout=LEASE_SECONDS)
            except LockServiceUnavailable:
                return None

        lease = self._timed(do, MOST_SECONDS + wait)
        if lease is not None and not lease.degraded:
            self._enter("A", lease)
        return lease

    def _extend(self, lease: Lease) -> Lease:
        if lease.degraded:
            return lease
        match self._timed(lambda: run(self.a.extend, lease, LEASE_SECONDS), MOST_SECONDS):
            case Granted(extended):
                self._until["A"] = extended.deadline
                return extended
            case Lost() as lost:
                assert time.monotonic() >= lease.deadline, f"A's lease was touched: {lost}"
        return lease

    def _release(self, lease: Lease) -> None:
        self._leave("A")
        outcome = self._timed(lambda: run(self.a.give_back, lease), MOST_SECONDS)
        if isinstance(outcome, Lost) and not lease.degraded:
            assert self.a.clock.now() >= lease.deadline, f"A's lease was touched: {outcome}"

    def _timed(self, do: Callable[[], _Result], most_seconds: float) -> _Result:
        started = time.monotonic()
        result = do()
        seconds = time.monotonic() - started
        if seconds > most_seconds:
            raise TooSlow(f"{seconds:.2f} s")
        return result

    # --- the holder ---------------------------------------------------------------------------

    def _enter(self, who: str, lease: Lease) -> None:
        with self._mutex:
            now = self.a.clock.now()
            others = [other for other in self._inside if self._until[other] > now]
            assert not others, f"{who} holds the lock while {others} holds it"
            self._inside.append(who)
            self._until[who] = lease.deadline

    def _leave(self, who: str) -> None:
        with self._mutex:
            if who in self._inside:
                self._inside.remove(who)


def _run(kind: Kind, plan: dict[int, AnyFault], *, optimistic: bool) -> int:
    with kind.proxied() as (proxy, store, direct):
        store.read("warm-up")
        proxy.arm(plan)
        sequence = Sequence(store, direct, optimistic=optimistic)
        try:
            sequence.run()
        except BaseException as error:
            error.add_note(f"{kind.name}, {plan}, {'optimistic' if optimistic else 'fail'}")
            raise
        packets = proxy.passed
        proxy.arm({})
        proxy.deliver()
        _until_free(sequence, direct, plan)
        return packets


def _run_until_in_time(kind: Kind, plan: dict[int, AnyFault], *, optimistic: bool) -> int:
    """Run it again if it was too slow: a step that is too slow in itself is so each time."""
    for _ in range(_TIMES - 1):
        with contextlib.suppress(TooSlow):
            return _run(kind, plan, optimistic=optimistic)
    return _run(kind, plan, optimistic=optimistic)


def _until_free(sequence: Sequence, direct: LeaseStore, plan: object) -> None:
    """Wait until all releases are sent: the lock has neither a holder nor waiters."""
    deadline = time.monotonic() + 8
    while True:
        sequence.resume()
        stored = direct.read(LOCK)
        if stored is None or (Record(stored).free and Record(stored).empty):
            return
        assert time.monotonic() < deadline, f"{plan}: left behind: {stored}"
        time.sleep(0.05)


def _drive(kind: Kind, fault: AnyFault) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        runs = [
            pool.submit(_run_until_in_time, kind, {step: fault}, optimistic=step % 2 == 0)
            for step in range(STEPS)
        ]
        for run in runs:
            run.result()


@pytest.mark.parametrize("kind", KINDS)
def test_without_faults(request: pytest.FixtureRequest, kind: str) -> None:
    packets = _run(kind_of(request, kind), {}, optimistic=False)
    assert packets >= 8, "so that there are steps for faults"


@pytest.mark.parametrize(("kind", "fault"), each_fault(few=(Fault.DROP_REPLY,)))
def test_a_fault_at_each_step(request: pytest.FixtureRequest, kind: str, fault: AnyFault) -> None:
    _drive(kind_of(request, kind), fault)


def test_a_release_by_plain_delete_is_found(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: A removes any record."""

    async def delete(self: LeaseProtocol, lease: Lease) -> Released:
        stored = self.store.read(lease.lock_id)
        if stored is not None:
            self.store.remove(lease.lock_id, stored.version)
        return Released()

    release = LeaseProtocol.release
    with kind_of(request, KINDS[0]).proxied() as (_, store, direct):
        sequence = Sequence(store, direct, optimistic=True)
        monkeypatch.setattr(
            LeaseProtocol,
            "release",
            lambda self, lease: (delete if self is sequence.a.protocol else release)(self, lease),
        )
        with pytest.raises(AssertionError, match="B's lease was touched"):
            _overlapping(sequence)


def _overlapping(sequence: Sequence) -> None:
    """A's lease is evicted, and released while B is at work."""
    lease = sequence.a.acquire(LOCK)
    stored = sequence.b.store.read(LOCK)
    assert stored is not None
    assert sequence.b.store.remove(LOCK, stored.version)
    with ThreadPoolExecutor(1) as pool:
        b = pool.submit(sequence._b)
        while not sequence._inside and not b.done():
            time.sleep(0.003)
        run(sequence.a.protocol.release, lease)
        b.result()
