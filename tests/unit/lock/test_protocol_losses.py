"""Leases extended, confirmed, broken and lost: the most exact report of the outcome."""

from __future__ import annotations

import pytest

from tests.leases import Leases, record_of, taken
from userlock.lock.lease import Claim, Granted, Held, Lease, Lost, Released, describe_loss
from userlock.lock.record import Record
from userlock.lock.store import GRACE_SECONDS, StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


@pytest.fixture
def leases(store: MemoryStore, clock: ManualClock) -> Leases:
    return Leases(store, clock)


def found(leases: Leases) -> Record:
    return record_of(leases.store, "learner-1")


class TestLosses:
    """The reason why a lease is no longer ours, as exactly as it can be known."""

    def test_it_ran_out(self, leases: Leases, clock: ManualClock) -> None:
        lease = taken(leases.take(make_claim(ttl_seconds=10)))
        clock.advance(10 + GRACE_SECONDS)
        assert leases.release(lease) == Lost("ran out")
        assert describe_loss(Lost("ran out"), lease) == "its lease of 10 s ran out"

    def test_it_ran_out_and_lies_there(self, leases: Leases, clock: ManualClock) -> None:
        lease = taken(leases.take(make_claim(ttl_seconds=10)))
        leases.join(make_claim())
        clock.advance(10)
        assert leases.release(lease) == Lost("ran out")

    def test_it_ran_out_and_another_has_it(self, leases: Leases, clock: ManualClock) -> None:
        lease = taken(leases.take(make_claim(ttl_seconds=10)))
        other = make_claim(request="POST /next")
        leases.join(other)
        clock.advance(10)
        next_lease = taken(leases.claim(other, found(leases), passing=False))
        before = found(leases)
        outcome = leases.release(lease)
        assert outcome == Lost("ran out", before.holder)
        assert isinstance(outcome, Lost)
        assert "held by POST /next" in describe_loss(outcome, lease)
        after = found(leases)
        assert (after.holder, after.free) == (before.holder, False)
        assert leases.release(next_lease) == Released()

    def test_the_store_forgot_it(self, leases: Leases, store: MemoryStore) -> None:
        lease = taken(leases.take(make_claim()))
        store.evict("learner-1")
        assert leases.release(lease) == Lost("forgotten")
        assert "its record is gone" in describe_loss(Lost("forgotten"), lease)

    def test_the_store_forgot_it_and_another_took_it(
        self, leases: Leases, store: MemoryStore
    ) -> None:
        lease = taken(leases.take(make_claim()))
        store.forget_everything()
        other = make_claim()
        next_lease = taken(leases.take(other))
        assert leases.release(lease) == Lost("taken", other.holder)
        assert not found(leases).free
        assert leases.release(next_lease) == Released()

    def test_somebody_broke_it(self, leases: Leases) -> None:
        lease = taken(leases.take(make_claim()))
        assert leases.break_("learner-1", found(leases), "ops") is not None
        assert leases.release(lease) == Lost("broken", None, "ops")
        assert describe_loss(Lost("broken", None, "ops"), lease) == "it was broken by ops"

    @pytest.mark.parametrize("verb", ["release", "extend"])
    def test_somebody_broke_it_and_the_next_one_took_it(self, leases: Leases, verb: str) -> None:
        lease = taken(leases.take(make_claim()))
        successor = make_claim(request="POST /next")
        leases.join(successor)
        leases.break_("learner-1", found(leases), "ops")
        taken(leases.claim(successor, found(leases), passing=False))
        holder = found(leases).holder
        outcome = leases.release(lease) if verb == "release" else leases.extend(lease, 60)
        assert outcome == Lost("broken", holder, "ops")
        assert found(leases).holder == holder

    @pytest.mark.parametrize("verb", ["release", "extend"])
    def test_a_lease_that_is_over_stays_over(self, leases: Leases, verb: str) -> None:
        """The old value, used after its release."""
        lease = taken(leases.take(make_claim()))
        leases.release(lease)
        outcome = leases.release(lease) if verb == "release" else leases.extend(lease, 60)
        assert outcome == Lost("forgotten")


class TestKeeping:
    def test_a_waiter_that_arrives_during_the_write_is_not_lost(
        self, leases: Leases, store: MemoryStore
    ) -> None:
        lease = taken(leases.take(make_claim()))
        claims = [make_claim() for _ in range(3)]
        for claim in claims:
            store.before("swap", lambda claim=claim: leases.join(claim))  # type: ignore[misc]
        assert isinstance(leases.extend(lease, 60), Granted)
        waiters = [waiter.token for waiter in found(leases).waiters()]
        assert waiters == [claim.token for claim in claims]

    def test_it_does_not_try_for_ever(self, leases: Leases, store: MemoryStore) -> None:
        lease = taken(leases.take(make_claim()))
        for _ in range(1000):
            store.before("swap", lambda: leases.join(make_claim()))
        with pytest.raises(StoreUnavailable, match="all the time"):
            leases.extend(lease, 60)

    def test_a_lease_that_ended_by_its_holders_clock_is_not_revived(
        self, leases: Leases, store: MemoryStore, clock: ManualClock
    ) -> None:
        """Also if the store is a little late: writes in between were not checked."""
        store.before("create", lambda: clock.advance(1))
        lease = taken(leases.take(make_claim(ttl_seconds=10)))
        clock.advance(9.5)
        assert not found(leases).lapsed
        assert leases.extend(lease, 60) == Lost("ran out")

    def test_its_own_queue_position_is_its_to_take(
        self, leases: Leases, clock: ManualClock
    ) -> None:
        """It was queued when the store went away, and is next now."""
        lease = degraded(leases, clock)
        other_lease = taken(leases.take(make_claim()))
        leases.join(Claim.of_lease(lease))
        leases.release(other_lease)
        assert isinstance(leases.confirm(lease), Granted)
        assert found(leases).empty

    def test_it_leaves_the_queue_once_another_has_the_lock(
        self, leases: Leases, clock: ManualClock
    ) -> None:
        """It would never use that position, and the waiters behind would wait for it."""
        lease = degraded(leases, clock)
        other_lease = taken(leases.take(make_claim()))
        leases.join(Claim.of_lease(lease))
        behind = make_claim()
        leases.join(behind)
        assert isinstance(leases.confirm(lease), Held)
        leases.release(other_lease)
        assert found(leases).position_of(behind.token) == 0


def degraded(leases: Leases, clock: ManualClock) -> Lease:
    """Return a lease of the outage policy."""
    claim = make_claim()
    lease = taken(leases.take(claim))
    leases.release(lease)
    return lease._replace(degraded=True, version=None, deadline=clock.now() + 60)
