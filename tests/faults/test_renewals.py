"""Many renewals in one packet, with faults on its way to the server and back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.faults.kinds import ALL_FAULTS, AnyFault, kind_of
from tests.faults.proxy import Fault, FaultProxy
from tests.leases import record_of
from tests.waiting import wait_until
from userlock import LockService
from userlock.clock import SYSTEM_CLOCK
from userlock.events import Listeners
from userlock.lock import protocol
from userlock.lock.lease import Granted, Lease, Lost, Unavailable
from userlock.lock.renewal import RenewalThread
from userlock.lock.store import LeaseStore
from userlock.testing import make_claim

COUNT = 40
FIRST_SECONDS, RENEWED_SECONDS = 20, 200
#: One timeout, separate checks, and a margin for a busy machine.
MOST_SECONDS = 0.1 + 0.3 + 0.6

Outcome = Granted | Lost | Unavailable


class Fleet:
    """Leases of one process behind the proxy.

    One of them is evicted, one has another holder by now, and a third has a waiter.
    """

    def __init__(self, store: LeaseStore, direct: LeaseStore) -> None:
        self._direct = direct
        self.service = LockService(
            store, renewals=RenewalThread(SYSTEM_CLOCK, threaded=False), listeners=Listeners()
        )
        self.others = LockService(direct, listeners=Listeners())
        self.leases = [
            self.service.acquire(f"learner-{number}", lock_timeout=FIRST_SECONDS)
            for number in range(COUNT)
        ]
        self._remove(5)
        self._remove(9)
        self.theirs = self.others.acquire(self.leases[9].lock_id)
        self.others.protocol.join(make_claim(self.leases[17].lock_id))
        self.gone = {5, 9}

    def _remove(self, number: int) -> None:
        stored = self._direct.read(self.leases[number].lock_id)
        assert stored is not None
        assert self._direct.remove(self.leases[number].lock_id, stored.version)

    def renew(self) -> list[Outcome]:
        """Renew all of them together, and record the granted ones."""
        outcomes = self.service.extend_many([(lease, RENEWED_SECONDS) for lease in self.leases])
        self.leases = [
            outcome.lease if isinstance(outcome, Granted) else lease
            for lease, outcome in zip(self.leases, outcomes, strict=True)
        ]
        return outcomes

    def is_renewed(self, lease: Lease) -> bool:
        """Return whether the server keeps the lease for the requested time."""
        stored = self._direct.read(lease.lock_id)
        left = None if stored is None else stored.seconds_left
        return left is not None and left > FIRST_SECONDS + 5

    def check(self, outcomes: list[Outcome]) -> None:
        """Check that all results are true."""
        for number, (lease, outcome) in enumerate(zip(self.leases, outcomes, strict=True)):
            if isinstance(outcome, Lost):
                assert number in self.gone
            if isinstance(outcome, Granted):
                assert self.is_renewed(lease), f"{lease.lock_id} was granted, but is not renewed"
                assert record_of(self._direct, lease.lock_id).holder.token == lease.token
        holder = self.others.holder(self.theirs.lock_id)
        assert holder is not None
        assert holder.token == self.theirs.token


Way = tuple[FaultProxy, LeaseStore, LeaseStore]


# memcached's other protocol renews them one after another.
@pytest.fixture(params=["memcached, meta", "redis"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """A proxy, a store through it, and one past it."""
    # What follows a fault is to be answered, however busy the machine is.
    monkeypatch.setattr("userlock.stores.pool.HURRY_TIMEOUT", 2.0)
    with kind_of(request, request.param).proxied() as way:
        yield way


@pytest.fixture
def proxy(way: Way) -> FaultProxy:
    return way[0]


@pytest.fixture
def fleet(way: Way) -> Fleet:
    _, store, direct = way
    store.read("warm-up")
    return Fleet(store, direct)


def in_the_end(fleet: Fleet) -> None:
    """Check that all outcomes are soon known again, and the leases can be released."""
    outcomes: list[Outcome] = []

    def all_is_known() -> bool:
        outcomes[:] = fleet.renew()
        return not any(isinstance(outcome, Unavailable) for outcome in outcomes)

    wait_until(all_is_known, 5)
    fleet.check(outcomes)
    assert {n for n, outcome in enumerate(outcomes) if isinstance(outcome, Lost)} == fleet.gone
    for number, lease in enumerate(fleet.leases):
        if number not in fleet.gone:
            fleet.service.release(lease)
    left = [lease.lock_id for lease in fleet.leases if fleet.others.holder(lease.lock_id)]
    assert left == [fleet.theirs.lock_id]


@pytest.mark.parametrize("packet", [0, 1])
@pytest.mark.parametrize("fault", ALL_FAULTS, ids=lambda fault: fault.value)
def test_a_fault(fleet: Fleet, proxy: FaultProxy, fault: AnyFault, packet: int) -> None:
    """At the packet itself, or at the first check of a refused one."""
    proxy.arm({packet: fault})
    started = time.monotonic()
    outcomes = fleet.renew()
    assert time.monotonic() - started < MOST_SECONDS
    assert not proxy.plan, "there were fewer packets"
    fleet.check(outcomes)
    proxy.deliver()
    in_the_end(fleet)


@pytest.mark.parametrize("packet", [0, 1, 2])
@pytest.mark.parametrize("fault", ALL_FAULTS, ids=lambda fault: fault.value)
def test_a_fault_on_a_new_connection(
    fleet: Fleet, proxy: FaultProxy, fault: AnyFault, packet: int
) -> None:
    """Without a trusted version: all are read in one packet, and swapped in the next."""
    fleet.service.store.close()
    proxy.arm({packet: fault})
    fleet.check(fleet.renew())
    assert not proxy.plan, "there were fewer packets"
    proxy.deliver()
    in_the_end(fleet)


def test_it_is_one_packet(fleet: Fleet, proxy: FaultProxy) -> None:
    """And a check of each refused one, and one more change."""
    proxy.arm({})
    fleet.check(fleet.renew())
    assert proxy.passed == 1 + 3 + 1


def test_unknown_outcomes_are_not_taken_for_success(
    fleet: Fleet, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: others would hold the lock while it believes in it."""

    class Never(Exception):
        pass

    monkeypatch.setattr(protocol, "StoreUnavailable", Never)
    proxy.arm({0: Fault.CUT_BEFORE})
    with pytest.raises(AssertionError, match="was granted, but is not renewed"):
        fleet.check(fleet.renew())
