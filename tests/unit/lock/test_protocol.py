"""Leases taken, waited for and released. Faults at each step: test_protocol_faults."""

from __future__ import annotations

import pytest

from tests.leases import Leases, record_of, taken
from userlock.lock.lease import Priority, Released
from userlock.lock.record import Record
from userlock.lock.store import GRACE_SECONDS, StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


@pytest.fixture
def leases(store: MemoryStore, clock: ManualClock) -> Leases:
    return Leases(store, clock)


def found(leases: Leases) -> Record:
    return record_of(leases.store, "learner-1")


class TestTaking:
    def test_a_free_lock_costs_one_command(self, leases: Leases, store: MemoryStore) -> None:
        claim = make_claim()
        lease = taken(leases.take(claim))
        assert (lease.token, lease.contended, lease.unsettled) == (claim.token, False, False)
        assert found(leases).holder == claim.holder
        assert store.asked == {"create": 1, "read": 1}

    def test_it_ends_for_its_holder_before_it_ends_in_the_store(
        self, leases: Leases, store: MemoryStore, clock: ManualClock
    ) -> None:
        """However long the command took."""
        store.before("create", lambda: clock.advance(2))
        lease = taken(leases.take(make_claim(ttl_seconds=10)))
        assert lease.deadline == clock.now() - 2 + 10
        clock.advance(8)
        assert not found(leases).lapsed
        assert clock.now() >= lease.deadline

    def test_a_lock_with_a_record_cannot_be_taken(self, leases: Leases, clock: ManualClock) -> None:
        """Not even a lapsed one: queued waiters come first."""
        taken(leases.take(make_claim(ttl_seconds=10)))
        assert leases.take(make_claim()) is None
        clock.advance(10)
        assert leases.take(make_claim()) is None
        clock.advance(GRACE_SECONDS)
        taken(leases.take(make_claim()))

    def test_the_next_waiter_takes_over_a_released_lock(self, leases: Leases) -> None:
        lease = taken(leases.take(make_claim()))
        first, second = make_claim(), make_claim()
        leases.join(first)
        leases.join(second)
        leases.release(lease)
        mine = taken(leases.claim(first, found(leases), passing=False))
        record = found(leases)
        assert (record.holder.token, record.free) == (first.token, False)
        assert record.position_of(second.token) == 0
        assert (mine.record, mine.version) == (record.stored.record, record.stored.version)
        assert mine.contended

    def test_a_lapsed_lock_as_well(self, leases: Leases, clock: ManualClock) -> None:
        taken(leases.take(make_claim(ttl_seconds=10)))
        claim = make_claim(ttl_seconds=20)
        leases.join(claim)
        clock.advance(10)
        mine = taken(leases.claim(claim, found(leases), passing=False))
        assert mine.deadline == clock.now() + 20
        clock.advance(19)
        assert not found(leases).free

    def test_the_time_of_the_grant_is_in_the_record(
        self, leases: Leases, clock: ManualClock
    ) -> None:
        """Others use it to estimate the length of the hold."""
        lease = taken(leases.take(make_claim()))
        claim = make_claim()
        leases.join(claim)
        clock.advance(7)
        leases.release(lease)
        taken(leases.claim(claim, found(leases), passing=False))
        assert found(leases).holder.since == pytest.approx(clock.wall())

    def test_a_claim_on_a_changed_record_is_refused(self, leases: Leases) -> None:
        """Otherwise a waiter that arrived meanwhile would be lost from the queue."""
        lease = taken(leases.take(make_claim()))
        claim = make_claim()
        leases.join(claim)
        leases.release(lease)
        seen = found(leases)
        newcomer = make_claim()
        leases.join(newcomer)
        assert leases.claim(claim, seen, passing=False) is None
        assert found(leases).position_of(newcomer.token) == 1

    def test_a_lost_record_is_begun_again_with_its_waiters(
        self, leases: Leases, store: MemoryStore
    ) -> None:
        taken(leases.take(make_claim()))
        first, second, third = (make_claim() for _ in range(3))
        for claim in (first, second, third):
            leases.join(claim)
        seen = found(leases)
        store.evict("learner-1")
        lease = taken(leases.begin(first, seen))
        record = found(leases)
        assert (record.holder.token, lease.contended) == (first.token, True)
        assert [waiter.token for waiter in record.waiters()] == [second.token, third.token]

    def test_one_that_was_never_seen_is_simply_taken(self, leases: Leases) -> None:
        claim = make_claim()
        lease = taken(leases.begin(claim, None))
        assert (found(leases).holder.token, lease.contended) == (claim.token, False)

    def test_a_slow_begin_is_not_cleaned_up_while_we_wait(
        self, leases: Leases, store: MemoryStore
    ) -> None:
        """A queued caller continues with the same token, which must not be removed."""
        late: list[object] = []
        leases.protocol.release_later = late.append
        store.delay("create")
        store.before("read", lambda: taken(Leases(store, store.clock).take(make_claim())))
        with pytest.raises(StoreUnavailable):
            leases.begin(make_claim(), None)
        assert late == []


class TestQueue:
    def test_joining_and_leaving_the_queue(self, leases: Leases) -> None:
        taken(leases.take(make_claim()))
        claim = make_claim(priority=Priority.BATCH)
        record = leases.join(claim)
        assert record is not None
        assert record.position_of(claim.token) == 0
        leases.leave(claim.lock_id, claim.token)
        assert found(leases).empty

    def test_there_is_no_queue_without_a_record(self, leases: Leases, store: MemoryStore) -> None:
        assert leases.join(make_claim()) is None
        leases.leave("learner-1", "4f01")
        assert leases.look("learner-1") is None

    def test_joining_does_not_keep_a_record_alive(self, leases: Leases, clock: ManualClock) -> None:
        taken(leases.take(make_claim(ttl_seconds=10)))
        clock.advance(9)
        leases.join(make_claim())
        clock.advance(1)
        assert found(leases).lapsed


class TestRelease:
    def test_alone_it_costs_one_command(self, leases: Leases, store: MemoryStore) -> None:
        lease = taken(leases.take(make_claim()))
        store.asked.clear()
        assert leases.release(lease) == Released()
        assert store.asked == {"remove": 1}
        assert leases.look("learner-1") is None

    def test_with_somebody_in_line_it_costs_two_the_first_time(
        self, leases: Leases, store: MemoryStore
    ) -> None:
        lease = taken(leases.take(make_claim()))
        claim = make_claim()
        leases.join(claim)
        store.asked.clear()
        assert leases.release(lease) == Released()
        assert store.asked == {"remove": 1, "append": 1}
        assert (found(leases).free, found(leases).position_of(claim.token)) == (True, 0)

    def test_and_one_where_they_stood_there_already(
        self, leases: Leases, store: MemoryStore
    ) -> None:
        lease = taken(leases.take(make_claim()))
        first, second = make_claim(), make_claim()
        leases.join(first)
        leases.join(second)
        leases.release(lease)
        mine = taken(leases.claim(first, found(leases), passing=False))
        store.asked.clear()
        assert leases.release(mine) == Released()
        assert store.asked == {"append": 1}
        assert found(leases).free

    def test_the_last_one_leaves_nothing_behind(self, leases: Leases) -> None:
        lease = taken(leases.take(make_claim()))
        claim = make_claim()
        leases.join(claim)
        leases.release(lease)
        mine = taken(leases.claim(claim, found(leases), passing=False))
        assert leases.release(mine) == Released()
        assert leases.look("learner-1") is None

    def test_a_waiter_that_arrives_at_the_last_moment_is_not_lost(
        self, leases: Leases, store: MemoryStore
    ) -> None:
        """Between the line that frees an empty record and its removal."""
        lease = taken(leases.take(make_claim()))
        left, late = make_claim(), make_claim()
        leases.join(left)
        leases.leave(left.lock_id, left.token)
        store.before("remove", lambda: None)  # the first one is refused: a waiter had arrived
        store.before("remove", lambda: leases.join(late))
        assert leases.release(lease) == Released()
        assert found(leases).position_of(late.token) == 0

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_claim_between_the_append_and_the_read_takes_nothing_away(
        self, leases: Leases, store: MemoryStore, fails: bool
    ) -> None:
        """For a store that cannot append and read in one step, or with a lost reply.

        we                       store                        next waiter append "= our token" ──▶
        free
                                 taken over ◀───────────────── swap
        read ──────────────────▶ the next waiter holds it: released, not lost
        """
        lease = taken(leases.take(make_claim()))
        successor = make_claim()
        leases.join(successor)
        append = store.append

        def append_then_look(lock_id: str, line: bytes) -> object:
            append(lock_id, line)
            taken(leases.claim(successor, found(leases), passing=False))
            if fails:
                raise StoreUnavailable("timed out", slow=True)
            return store.read(lock_id)

        store.append = append_then_look  # type: ignore[method-assign,assignment]
        assert leases.release(lease) == Released()
        record = found(leases)
        assert (record.holder.token, record.free) == (successor.token, False)
