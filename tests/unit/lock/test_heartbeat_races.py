"""A renewal that meets a release, an extension by hand, or the end: in every order."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

import userlock
from tests.forks import in_child
from tests.leases import record_of
from tests.unit.lock.pulse import LEASE, Here
from userlock import HeldLock, LockService
from userlock.events import Event, Extended, LeaseLost, Released
from userlock.lock.lease import Granted, Lease, Lost
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run


@pytest.fixture(params=["no waiter", "a waiter", "a waiter arrives meanwhile"])
def queue(request: pytest.FixtureRequest, service: LockService, tenure: HeldLock) -> str:
    how: str = request.param
    if how != "no waiter":
        run(service.protocol.join, make_claim("ann"))
    if how == "a waiter":
        tenure.extend(LEASE)  # so that the lease knows of it
    return how


class TestRelease:
    @pytest.mark.parametrize("trouble", [None, "lose_reply", "lose_command"])
    def test_while_a_renewal_is_on_its_way(
        self, here: Here, tenure: HeldLock, queue: str, trouble: str | None
    ) -> None:
        """The release comes first: the renewal finds nothing to renew, and reports nothing."""
        if trouble is not None:
            getattr(here.store, trouble)("swap")
        here.store.before("swap", lambda: tenure.release())
        here.clock.advance(LEASE / 2)
        here.service.renewals.run_due()
        here.live(LEASE / 10)
        self.assert_given_back(here.service, here.store, here.events, queue)

    def test_when_a_renewal_comes_in_just_before(
        self, here: Here, tenure: HeldLock, queue: str
    ) -> None:
        """The record is no longer as the releasing thread knows it."""
        here.clock.advance(LEASE / 2)
        verb = "append" if tenure._lease.contended else "remove"

        def renew() -> None:
            outcome = run(here.service.extend, tenure._lease, LEASE)
            assert type(outcome).__name__ == "Granted"

        here.store.before(verb, renew)  # type: ignore[arg-type]
        tenure.release()
        self.assert_given_back(here.service, here.store, here.events, queue)

    @staticmethod
    def assert_given_back(
        service: LockService, store: MemoryStore, events: list[Event], queue: str
    ) -> None:
        assert service.holder("ann") is None
        if queue == "no waiter":
            assert store.read("ann") is None
        else:
            assert len(service.waiters("ann")) == 1
        assert [type(event) for event in events if isinstance(event, LeaseLost | Released)] == [
            Released
        ]
        assert not any(isinstance(event, Extended) for event in events[events_of_end(events) :])

    def test_of_a_lock_that_is_found_lost_at_the_same_moment(
        self, here: Here, tenure: HeldLock
    ) -> None:
        """The renewal has seen the loss; the release comes before its report."""
        here.store.evict("ann")
        here.clock.advance(LEASE / 2)
        here.store.before("read", lambda: tenure.release())
        here.service.renewals.run_due()
        assert len([event for event in here.events if isinstance(event, LeaseLost)]) == 1


def events_of_end(events: list[Event]) -> int:
    return next(number for number, event in enumerate(events) if isinstance(event, Released))


class TestExtensionByHand:
    @pytest.fixture(params=["before", "after"])
    def meeting(
        self, request: pytest.FixtureRequest, service: LockService, clock: ManualClock
    ) -> Iterator[None]:
        """Run the renewal thread during an extension, or right after it."""
        extend = service.protocol.extend
        met: list[bool] = []

        async def meet(lease: Lease, seconds: float) -> Granted | Lost:
            if met:  # the renewal thread's own
                return await extend(lease, seconds)
            met.append(True)
            if request.param == "before":
                service.renewals.run_due()
            outcome = await extend(lease, seconds)
            if request.param == "after":
                service.renewals.run_due()
            return outcome

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service.protocol, "extend", meet)
            yield

    @pytest.mark.usefixtures("meeting")
    def test_the_renewal_lets_it_finish(self, here: Here, tenure: HeldLock) -> None:
        """Both would be granted; the holder must not believe the longer one."""
        here.clock.advance(LEASE / 2)
        tenure.extend(60)
        assert tenure.expires_in == 60
        here.live(50)
        assert not record_of(here.store, "ann").lapsed

    @pytest.mark.parametrize("meeting", ["after"], indirect=True)
    @pytest.mark.usefixtures("meeting")
    def test_without_waiting_the_store_would_end_it_before_the_holder(
        self, here: Here, tenure: HeldLock
    ) -> None:
        """The negative control: neither waits for the other."""
        tenure._scope._extending = mock.MagicMock()
        here.clock.advance(LEASE / 2)
        tenure.extend(60)
        here.clock.advance(30)
        assert not tenure._ran_out
        assert here.service.holder("ann") is None

    def test_a_longer_lease_is_renewed_when_it_needs_to_be(
        self, here: Here, tenure: HeldLock
    ) -> None:
        tenure.extend(60)
        swaps = here.store.asked["swap"]
        here.live(50)
        assert here.store.asked["swap"] == swaps
        here.live(100)
        assert not tenure._ran_out
        assert not tenure.lost
        assert tenure.expires_in <= LEASE

    def test_a_shorter_one_with_a_lost_reply_too(self, here: Here, tenure: HeldLock) -> None:
        here.store.lose_reply("swap")
        with pytest.raises(userlock.LockServiceUnavailable):
            tenure.extend(1)
        assert tenure.expires_in == 1
        here.live(100)
        assert not tenure.lost
        assert not record_of(here.store, "ann").free


class TestFork:
    def test_the_child_extends_nothing_and_loses_nothing_of_its_parent(
        self, here: Here, tenure: HeldLock
    ) -> None:

        def try_it() -> int:
            with pytest.raises(userlock.LockNotHeld, match="to the process that forked this one"):
                tenure.extend(30)
            here.live(5 * LEASE)
            return here.store.asked["swap"]

        assert in_child(try_it) == 0
        here.live(5 * LEASE)
        assert not tenure._ran_out
