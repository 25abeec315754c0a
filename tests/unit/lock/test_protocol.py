"""Leases taken, waited for, kept, released and lost; and lost replies while other clients act.

Unknown outcomes are reported as unknown. Faults at each step: test_protocol_faults.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from tests.leases import Leases, MemoryLeases, existing, record_of, taken
from userlock.lock.lease import (
    Claim,
    Granted,
    Held,
    Lease,
    Lost,
    Released,
    describe_loss,
)
from userlock.lock.protocol import LeaseProtocol
from userlock.lock.record import Record
from userlock.lock.store import GRACE_SECONDS, Stored, StoreUnavailable
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim


def found(leases: MemoryLeases) -> Record:
    return record_of(leases.store, "learner-1")


class TestTaking:
    def test_it_ends_for_its_holder_before_it_ends_in_the_store(self, leases: MemoryLeases) -> None:
        """However long the command took."""
        leases.store.before("create", lambda: leases.clock.advance(2))
        lease = taken(leases.take(make_claim(ttl_seconds=10)))
        assert lease.deadline == leases.clock.now() - 2 + 10
        leases.clock.advance(8)
        assert not found(leases).lapsed
        assert leases.clock.now() >= lease.deadline

    def test_a_lock_with_a_record_cannot_be_taken(self, leases: MemoryLeases) -> None:
        """Not even a lapsed one: queued waiters come first."""
        taken(leases.take(make_claim(ttl_seconds=10)))
        assert leases.take(make_claim()) is None
        leases.clock.advance(10)
        assert leases.take(make_claim()) is None
        leases.clock.advance(GRACE_SECONDS)
        taken(leases.take(make_claim()))

    def test_the_next_waiter_takes_over_a_released_lock(self, leases: MemoryLeases) -> None:
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

    def test_the_time_of_the_grant_is_in_the_record(self, leases: MemoryLeases) -> None:
        """Others use it to estimate the length of the hold."""
        lease = taken(leases.take(make_claim()))
        claim = make_claim()
        leases.join(claim)
        leases.clock.advance(7)
        leases.release(lease)
        taken(leases.claim(claim, found(leases), passing=False))
        assert found(leases).holder.since == pytest.approx(leases.clock.wall())

    def test_a_lost_record_is_begun_again_with_its_waiters(self, leases: MemoryLeases) -> None:
        taken(leases.take(make_claim()))
        first, second, third = (make_claim() for _ in range(3))
        for claim in (first, second, third):
            leases.join(claim)
        seen = found(leases)
        leases.store.evict("learner-1")
        lease = taken(leases.begin(first, seen))
        record = found(leases)
        assert (record.holder.token, lease.contended) == (first.token, True)
        assert [waiter.token for waiter in record.waiters()] == [second.token, third.token]

    def test_a_slow_begin_is_not_cleaned_up_while_we_wait(self, leases: MemoryLeases) -> None:
        """A queued caller continues with the same token, which must not be removed."""
        late: list[object] = []
        leases.protocol.release_later = late.append
        leases.store.delay("create")
        leases.store.before(
            "read", lambda: taken(Leases(leases.store, leases.store.clock).take(make_claim()))
        )
        with pytest.raises(StoreUnavailable):
            leases.begin(make_claim(), None)
        assert late == []


class TestQueue:
    def test_joining_does_not_keep_a_record_alive(self, leases: MemoryLeases) -> None:
        taken(leases.take(make_claim(ttl_seconds=10)))
        leases.clock.advance(9)
        leases.join(make_claim())
        leases.clock.advance(1)
        assert found(leases).lapsed


class TestRelease:
    def test_alone_it_costs_one_command(self, leases: MemoryLeases, store: MemoryStore) -> None:
        lease = taken(leases.take(make_claim()))
        store.asked.clear()
        assert leases.release(lease) == Released()
        assert store.asked == {"remove": 1}
        assert leases.look("learner-1") is None

    def test_with_somebody_in_line_it_costs_two_the_first_time(self, leases: MemoryLeases) -> None:
        lease = taken(leases.take(make_claim()))
        claim = make_claim()
        leases.join(claim)
        leases.store.asked.clear()
        assert leases.release(lease) == Released()
        assert leases.store.asked == {"remove": 1, "append": 1}
        assert (found(leases).free, found(leases).position_of(claim.token)) == (True, 0)

    def test_and_one_where_they_stood_there_already(self, leases: MemoryLeases) -> None:
        lease = taken(leases.take(make_claim()))
        first, second = make_claim(), make_claim()
        leases.join(first)
        leases.join(second)
        leases.release(lease)
        mine = taken(leases.claim(first, found(leases), passing=False))
        leases.store.asked.clear()
        assert leases.release(mine) == Released()
        assert leases.store.asked == {"append": 1}
        assert found(leases).free

    def test_the_last_waiter_of_a_free_lock_removes_its_record(self, leases: MemoryLeases) -> None:
        """It was released to them, and their waits were over."""
        lease = taken(leases.take(make_claim()))
        first, last = make_claim(), make_claim()
        leases.join(first)
        leases.join(last)
        leases.release(lease)
        leases.leave(first.lock_id, first.token)
        assert found(leases).position_of(last.token) == 0
        leases.leave(last.lock_id, last.token)
        assert leases.look(last.lock_id) is None

    def test_a_waiter_that_arrives_at_the_last_moment_is_not_lost(
        self, leases: MemoryLeases
    ) -> None:
        """Between the line that frees an empty record and its removal."""
        lease = taken(leases.take(make_claim()))
        left, late = make_claim(), make_claim()
        leases.join(left)
        leases.leave(left.lock_id, left.token)
        leases.store.before(
            "remove", lambda: None
        )  # the first one is refused: a waiter had arrived
        leases.store.before("remove", lambda: leases.join(late))
        assert leases.release(lease) == Released()
        assert found(leases).position_of(late.token) == 0

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_claim_between_the_append_and_the_read_takes_nothing_away(
        self, leases: MemoryLeases, fails: bool
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
        append = leases.store.append

        def append_then_look(lock_id: str, line: bytes) -> object:
            append(lock_id, line)
            taken(leases.claim(successor, found(leases), passing=False))
            if fails:
                raise StoreUnavailable("timed out", slow=True)
            return leases.store.read(lock_id)

        leases.store.append = append_then_look  # type: ignore[method-assign,assignment]
        assert leases.release(lease) == Released()
        record = found(leases)
        assert (record.holder.token, record.free) == (successor.token, False)


class TestLosses:
    def test_it_ran_out_and_lies_there(self, leases: MemoryLeases, clock: ManualClock) -> None:
        lease = taken(leases.take(make_claim(ttl_seconds=10)))
        leases.join(make_claim())
        clock.advance(10)
        assert leases.release(lease) == Lost("ran out")

    def test_it_ran_out_and_another_has_it(self, leases: MemoryLeases, clock: ManualClock) -> None:
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

    def test_the_store_forgot_it_and_another_took_it(self, leases: MemoryLeases) -> None:
        lease = taken(leases.take(make_claim()))
        leases.store.forget_everything()
        other = make_claim()
        next_lease = taken(leases.take(other))
        assert leases.release(lease) == Lost("taken", other.holder)
        assert not found(leases).free
        assert leases.release(next_lease) == Released()

    @pytest.mark.parametrize("verb", ["release", "extend"])
    def test_somebody_broke_it_and_the_next_one_took_it(
        self, leases: MemoryLeases, verb: str
    ) -> None:
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
    def test_a_lease_that_is_over_stays_over(self, leases: MemoryLeases, verb: str) -> None:
        lease = taken(leases.take(make_claim()))
        leases.release(lease)
        outcome = leases.release(lease) if verb == "release" else leases.extend(lease, 60)
        assert outcome == Lost("forgotten")


class TestKeeping:
    def test_a_waiter_that_arrives_during_the_write_is_not_lost(self, leases: MemoryLeases) -> None:
        lease = taken(leases.take(make_claim()))
        claims = [make_claim() for _ in range(3)]
        for claim in claims:
            leases.store.before("swap", lambda claim=claim: leases.join(claim))  # type: ignore[misc]
        assert isinstance(leases.extend(lease, 60), Granted)
        waiters = [waiter.token for waiter in found(leases).waiters()]
        assert waiters == [claim.token for claim in claims]

    def test_it_does_not_try_for_ever(self, leases: MemoryLeases, store: MemoryStore) -> None:
        lease = taken(leases.take(make_claim()))
        for _ in range(1000):
            store.before("swap", lambda: leases.join(make_claim()))
        with pytest.raises(StoreUnavailable, match="all the time"):
            leases.extend(lease, 60)

    def test_a_lease_that_ended_by_its_holders_clock_is_not_revived(
        self, leases: MemoryLeases
    ) -> None:
        """Also if the store is a little late: writes in between were not checked."""
        leases.store.before("create", lambda: leases.clock.advance(1))
        lease = taken(leases.take(make_claim(ttl_seconds=10)))
        leases.clock.advance(9.5)
        assert not found(leases).lapsed
        assert leases.extend(lease, 60) == Lost("ran out")

    def test_its_own_queue_position_is_its_to_take(self, leases: MemoryLeases) -> None:
        """It was queued when the store went away, and is next now."""
        lease = degraded(leases, leases.clock)
        other_lease = taken(leases.take(make_claim()))
        leases.join(Claim.of_lease(lease))
        leases.release(other_lease)
        assert isinstance(leases.confirm(lease), Granted)
        assert found(leases).empty

    def test_it_leaves_the_queue_once_another_has_the_lock(self, leases: MemoryLeases) -> None:
        """It would never use that position, and the waiters behind would wait for it."""
        lease = degraded(leases, leases.clock)
        other_lease = taken(leases.take(make_claim()))
        leases.join(Claim.of_lease(lease))
        behind = make_claim()
        leases.join(behind)
        assert isinstance(leases.confirm(lease), Held)
        leases.release(other_lease)
        assert found(leases).position_of(behind.token) == 0


def degraded(leases: MemoryLeases, clock: ManualClock) -> Lease:
    """Return a lease of the outage policy."""
    claim = make_claim()
    lease = taken(leases.take(claim))
    leases.release(lease)
    return lease._replace(degraded=True, version=None, deadline=clock.now() + 60)


class TestReleasesInDoubt:
    def test_a_remove_in_doubt_whose_lock_has_others_now(self, leases: MemoryLeases) -> None:
        """This is no loss, but it is not known to be a release either."""
        lease = taken(leases.take(make_claim()))
        leases.store.lose_reply("remove")
        leases.store.before("read", lambda: leases.take(make_claim()))
        with pytest.raises(StoreUnavailable):
            leases.release(lease)

    def test_a_line_in_doubt_whose_record_has_gone(self, leases: MemoryLeases) -> None:
        """The next waiter has taken and left it. That the server answered the read is no outage."""
        lease = taken(leases.take(make_claim()))._replace(contended=True)
        leases.store.lose_reply("append")
        leases.store.before("read", lambda: next_one_comes_and_goes(leases))
        with pytest.raises(StoreUnavailable) as caught:
            leases.release(lease)
        assert caught.value.serves_others

    def test_a_remove_in_doubt_after_the_lease(self, leases: MemoryLeases) -> None:
        """Others may have held the lock in between, and have left again."""
        lease = taken(leases.take(make_claim(ttl_seconds=1)))
        leases.clock.advance(5)
        leases.store.lose_command("remove")
        with pytest.raises(StoreUnavailable):
            leases.release(lease)

    def test_a_line_with_a_lost_reply_is_found_after_the_lease(self, leases: MemoryLeases) -> None:
        """It was written in time, and no other client has held the lock since: that is no loss."""
        lease = taken(leases.take(make_claim(ttl_seconds=1)))._replace(contended=True)
        leases.store.lose_reply("append")
        leases.store.before("read", lambda: leases.clock.advance(2))
        assert leases.release(lease) == Released()
        assert leases.look(lease.lock_id) is None

    def test_a_store_that_sends_lines_again_would_make_it_a_loss(self, clock: ManualClock) -> None:
        """The negative control of `test_a_line_in_doubt_whose_record_has_gone`."""

        class Resending(MemoryStore):
            between: Callable[[], object] = staticmethod(lambda: None)

            def append(self, lock_id: str, line: bytes) -> Stored | None:
                super().append(lock_id, line)  # its reply is lost, with the connection
                between, self.between = self.between, lambda: None
                between()
                return super().append(lock_id, line)

        store = Resending(clock=clock)
        leases = MemoryLeases(store, clock)
        lease = taken(leases.take(make_claim()))._replace(contended=True)
        store.between = lambda: next_one_comes_and_goes(leases)
        assert leases.release(lease) == Lost("forgotten", None)


class TestGrantsInDoubt:
    @pytest.mark.parametrize("verb", ["take", "begin"])
    def test_a_create_that_was_not_sent_is_not_looked_for(
        self, leases: MemoryLeases, verb: str
    ) -> None:
        """Nothing is to be released later."""
        leases.store.go_down(sent=False)
        with pytest.raises(StoreUnavailable) as caught:
            leases.take(make_claim()) if verb == "take" else leases.begin(make_claim(), None)
        assert not caught.value.sent


class TestLinesInDoubt:
    """Lines that may be repeated without harm are retried: joining, leaving, and notes."""

    @pytest.mark.parametrize("lost", [MemoryStore.lose_reply, MemoryStore.lose_command])
    def test_a_broken_connection(
        self, leases: MemoryLeases, lost: Callable[[MemoryStore, str], None]
    ) -> None:
        taken(leases.take(make_claim()))
        first, second = make_claim(), make_claim()
        lost(leases.store, "append")
        leases.join(first)
        record = existing(leases.join(second))
        assert [each.token for each in record.waiters()] == [first.token, second.token]
        lost(leases.store, "append")
        leases.leave(first.lock_id, first.token)
        record = existing(leases.look(first.lock_id))
        assert [each.token for each in record.waiters()] == [second.token]

    def test_a_time_out_is_not_waited_for_twice(self, leases: MemoryLeases) -> None:
        taken(leases.take(make_claim()))
        leases.store.lose_command("append", slow=True)
        with pytest.raises(StoreUnavailable):
            leases.join(make_claim())
        assert leases.store.asked["append"] == 1

    def test_a_server_that_is_gone_by_then_may_have_got_the_first(
        self, leases: MemoryLeases
    ) -> None:
        """So a waiter that timed out has a position to give up."""
        taken(leases.take(make_claim()))
        leases.store.lose_reply("append")
        leases.store.before(
            "append",
            lambda: leases.store.before("append", lambda: leases.store.go_down(sent=False)),
        )
        with pytest.raises(StoreUnavailable) as caught:
            leases.join(make_claim())
        assert caught.value.sent


class TestErrors:
    """Exceptions are released once they are handled: outages leave nothing to collect."""

    @pytest.fixture(autouse=True)
    def without_a_collector(self) -> Iterator[None]:
        gc.disable()
        yield
        gc.enable()

    @staticmethod
    def trouble_with(leases: MemoryLeases, lease: Lease) -> weakref.ref[StoreUnavailable]:
        try:
            leases.release(lease)
        except StoreUnavailable as trouble:
            return weakref.ref(trouble)
        raise AssertionError("it was released")

    @pytest.mark.parametrize("sent", [True, False])
    def test_of_a_store_that_is_down(self, leases: MemoryLeases, sent: bool) -> None:
        lease = taken(leases.take(make_claim()))
        leases.store.go_down(sent=sent)
        assert self.trouble_with(leases, lease)() is None

    def test_of_what_is_not_known(self, store: MemoryStore, leases: MemoryLeases) -> None:
        lease = taken(leases.take(make_claim()))
        store.lose_reply("remove")
        store.before("read", lambda: leases.take(make_claim()))
        assert self.trouble_with(leases, lease)() is None

    def test_one_that_is_raised_where_it_is_an_argument_would_stay(
        self, leases: MemoryLeases, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""

        async def raised(
            leases: LeaseProtocol, trouble: StoreUnavailable, *_: object, **__: object
        ) -> None:
            raise trouble

        monkeypatch.setattr(LeaseProtocol, "_end_after", raised)
        lease = taken(leases.take(make_claim()))
        leases.store.go_down()
        assert self.trouble_with(leases, lease)() is not None


def next_one_comes_and_goes(leases: MemoryLeases) -> None:
    """Let another client take over the free lock and release it."""
    record = existing(leases.look("learner-1"))
    leases.release(taken(leases.claim(make_claim(), record, passing=False)))
