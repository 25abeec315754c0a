"""A lock's record: its holder and waiters, from lines that anybody may have written."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.leases import as_stored
from tests.unit.lock.logs import Log, a_holder, names, new_nonce, read_again, reserved_by
from userlock.lock.record import (
    PATIENCE_SECONDS,
    BlockedOn,
    Record,
    Waiter,
    aged,
    blocked,
    done,
    joining,
)


@pytest.fixture
def log() -> Log:
    return Log(a_holder("holder"))


class TestHolder:
    def test_the_end_of_another_does_not(self, log: Log) -> None:
        """A late line of an earlier holder, for example."""
        assert not log.add(done("0ther")).record.free
        assert not log.add(done(log.holder.token + "0")).record.free
        assert not log.add(done(log.holder.token[:-1])).record.free

    def test_one_whose_time_is_over_leaves_the_lock_free(self, log: Log) -> None:
        log.lapsed = True
        assert (log.record.free, log.record.released) == (True, False)

    def test_it_can_be_broken(self, log: Log) -> None:
        record = log.add(done(log.holder.token, by='an "operator"')).record
        assert (record.released, record.free) == (True, True)
        assert record.broken_by == 'an "operator"'

    def test_breaking_what_was_released_breaks_nothing(self, log: Log) -> None:
        log.add(done(log.holder.token), done(log.holder.token, by="ops"))
        assert log.record.broken_by == ""

    def test_a_release_after_the_break_does_not_hide_it(self, log: Log) -> None:
        log.add(done(log.holder.token, by="ops"), done(log.holder.token))
        assert log.record.broken_by == "ops"

    @pytest.mark.parametrize("note", [b"{", b"[]", b"17", b"\xff", b'"\\ud800"'])
    def test_an_invalid_note_has_an_unknown_author(self, log: Log, note: bytes) -> None:
        record = log.add(done(log.holder.token), b" ", note).record
        assert record.broken_by in ("somebody", "?")

    def test_the_lock_that_it_waits_for(self, log: Log) -> None:
        on = BlockedOn("an\nother 🔒", 1_700_000_000.5, "4f05")
        assert log.record.blocked_on is None
        assert log.add(blocked(log.holder.token, on)).record.blocked_on == on
        assert log.add(blocked(log.holder.token, None)).record.blocked_on is None
        assert log.add(blocked(log.holder.token, on)).record.blocked_on == on, "the last one counts"

    def test_waits_of_others_are_not_its_own(self, log: Log) -> None:
        on = BlockedOn("other", 1.0, "4f05")
        assert log.add(blocked("0ther", on)).record.blocked_on is None

    def test_what_is_read_again_is_as_it_is_stored_then(self, log: Log) -> None:
        """Its time may have ended meanwhile, although nobody has changed it."""
        first = log.record
        log.lapsed = True
        assert (first.again(log.record.stored).free, first.free) == (True, False)
        log.joined_by("a").add(done(log.holder.token))
        changed = first.again(log.record.stored)
        assert (changed.released, changed.next_token()) == (True, log["a"].token)
        assert (first.released, first.empty) == (False, True)


class TestQueue:
    def test_a_waiter_has_its_own_details(self, log: Log) -> None:
        waiter = a_holder("GET /", priority="batch", since=0.1234, process="jobs-1/9")
        (seen,) = log.add(joining(waiter)).record.waiters()
        assert seen == Waiter(waiter.token, "batch", 1_700_000_000.123, "jobs-1/9", "GET /", False)

    def test_interactive_is_served_before_batch(self, log: Log) -> None:
        log.joined_by("a", priority="batch").joined_by("b").joined_by("c", priority="batch")
        assert log.joined_by("d").queue == ["b", "d", "a", "c"]
        assert log.record.interactive_waits()

    def test_batch_alone_is_not_interactive(self, log: Log) -> None:
        assert not log.record.interactive_waits()
        assert not log.joined_by("a", priority="batch").record.interactive_waits()

    def test_batch_that_has_aged_ranks_as_interactive(self, log: Log) -> None:
        """By the begin of its wait: from then on no later request can pass it. Nor does it pass
        batch that has waited for longer, and has not noted yet that it has aged."""
        log.joined_by("a", priority="batch").joined_by("b").joined_by("c", "d", priority="batch")
        log.add(aged(log["c"].token)).joined_by("e")
        assert log.queue == ["a", "b", "c", "e", "d"]
        assert [each.aged for each in log.record.waiters()] == [True, False, True, False, False]
        assert log.record.interactive_waits()

    def test_the_end_may_come_before_the_beginning(self, log: Log) -> None:
        """A repeated line, after its sender had timed out."""
        late = a_holder("late")
        log.add(joining(late), done(late.token), joining(late), joining(late, again=True))
        assert log.record.empty

    def test_a_repeated_line_counts_once(self, log: Log) -> None:
        log.joined_by("a", "b").add(joining(log["a"]), joining(log["b"], again=True))
        assert log.queue == ["a", "b"]

    def test_a_rejoining_waiter_is_before_later_ones(self, log: Log) -> None:
        """After its record was lost, or it was passed while it was paused."""
        first, second, third, fourth = (
            a_holder(name, since=since) for since, name in enumerate(["a", "b", "c", "d"])
        )
        log.add(joining(second), joining(fourth))
        log.add(joining(third, again=True), joining(first, again=True))
        assert log.queue == ["a", "b", "c", "d"]

    def test_a_new_waiter_is_last_whatever_its_clock(self, log: Log) -> None:
        late, early = a_holder("late", since=9), a_holder("early", since=-1000)
        log.add(joining(late), joining(early))
        assert log.queue == ["late", "early"]

    @pytest.mark.parametrize(("besides", "processes"), [("c", 1), ("d", 2)])
    def test_a_reservation_lives_for_each_process_but_the_callers_own(
        self, log: Log, besides: str, processes: int
    ) -> None:
        nonce = new_nonce()
        log.joined_by("a", "b", nonce=nonce, process="web/1").joined_by("c", process="web/1")
        log.joined_by("d", nonce=nonce, process="web/2")
        by = a_holder()
        _, seconds = log.record.reserved_by(
            as_stored(by), by.token, besides=log[besides].token, leaving=True
        )
        assert seconds == PATIENCE_SECONDS * (processes + 1)


class TestTurns:
    """The right to claim the lock by the record alone, without having seen it for long."""

    def test_a_free_lock_is_for_the_first_waiter(self, log: Log) -> None:
        log.add(done(log.holder.token))
        assert log.record.is_turn_of("nobody")
        log.joined_by("a", "b")
        turns = [log.record.is_turn_of(token) for token in (log["a"].token, log["b"].token, "x")]
        assert turns == [True, False, False]

    def test_a_reservation_is_for_its_waiters(self, log: Log) -> None:
        log.joined_by("a", "b").add(done(log.holder.token))
        reserved = reserved_by(log, a_holder("hasty")).joined_by("c")
        assert reserved.queue == ["a", "b", "c"]
        reserved.lapsed = True
        assert reserved.record.is_turn_of(reserved["c"].token)
        assert not reserved.record.is_turn_of("nobody")
        reserved.add(done(reserved["c"].token))
        assert reserved.record.is_turn_of("nobody")

    def test_a_reservation_is_made_once(self, log: Log) -> None:
        """Each is a change of the record, and the first waiter is about to claim it."""
        log.joined_by("a")
        assert not log.record.can_be_reserved_by("me"), "the lock is held"
        log.add(done(log.holder.token))
        assert log.record.can_be_reserved_by("me")
        assert not log.record.can_be_reserved_by(log["a"].token), "nobody else is there"
        reserved = reserved_by(log, a_holder("hasty")).joined_by("b")
        assert not reserved.record.can_be_reserved_by("me")
        reserved.lapsed = True
        assert reserved.record.can_be_reserved_by("me"), "for the one that came after it"

    def test_a_caller_that_times_out_with_it_is_no_longer_queued(self, log: Log) -> None:
        log.joined_by("a", "hasty", "b").add(done(log.holder.token))
        by = a_holder()
        hasty = log["hasty"].token
        reserved, _ = log.record.reserved_by(as_stored(by), by.token, besides=hasty, leaving=True)
        assert names(read_again(reserved)) == ["a", "b"]
        reserved, _ = log.record.reserved_by(as_stored(by), by.token, besides=hasty, leaving=False)
        assert names(read_again(reserved)) == ["a", "hasty", "b"]

    def test_a_reservation_cannot_be_forged(self, log: Log) -> None:
        log.joined_by("a").add(done(log.holder.token), b"\n? 0ther").lapsed = True
        assert not log.record.is_turn_of("nobody")


class TestSuccession:
    """The record after the next waiter has taken over."""

    def take_over(self, log: Log, name: str, *, passing: bool = False) -> Record:
        successor = log[name]._replace(since=1_700_000_099.0)
        record = log.record.succeeded_by(as_stored(successor), successor.token, passing=passing)
        after = read_again(record)
        assert after.holder == successor
        return after

    def test_their_notes_are_kept(self, log: Log) -> None:
        log.joined_by("a").joined_by("b", priority="batch", process='"ü"/1')
        log.add(aged(log["b"].token), done(log.holder.token))
        before = log.record.waiters()
        assert self.take_over(log, "a").waiters() == before[1:]

    def test_it_names_its_predecessor(self, log: Log) -> None:
        log.joined_by("a").add(done(log.holder.token))
        after = self.take_over(log, "a")
        assert after.succeeds_released(log.holder.token)
        assert not after.succeeds_released(log["a"].token)
        assert not after.succeeds_released(log.holder.token[:-1])

    def test_passed_waiters_have_to_rejoin(self, log: Log) -> None:
        log.joined_by("a", "b", "c", "d").lapsed = True
        after = self.take_over(log, "c", passing=True)
        assert names(after) == ["d"]
        back = Log(log["c"], after.stored.record).add(joining(log["a"], again=True))
        assert back.queue == ["a", "d"], "before those who came after it"

    def test_batch_that_passes_passes_interactive_too(self, log: Log) -> None:
        """All waiters ahead have had their time, whatever their rank."""
        log.joined_by("job", priority="batch").joined_by("interactive").lapsed = True
        assert names(self.take_over(log, "job", passing=True)) == []

    def test_an_unqueued_caller_passes_all_waiters_or_none(self, log: Log) -> None:
        log.joined_by("a", "b").members["newcomer"] = a_holder("newcomer")
        assert names(self.take_over(log, "newcomer")) == ["a", "b"]
        assert names(self.take_over(log, "newcomer", passing=True)) == []


class TestCompaction:
    def test_it_keeps_the_holders_wait(self, log: Log) -> None:
        on = BlockedOn("other", 1.5, "4f05")
        log.add(blocked(log.holder.token, on), blocked("0ther", BlockedOn("a third", 1.0, "x")))
        assert read_again(log.record.compacted()).blocked_on == on

    def test_it_keeps_the_holders_predecessor(self, log: Log) -> None:
        """The last holder may still be about to check the result of its release."""
        log.joined_by("a").add(done(log.holder.token))
        taken_over = log.record.succeeded_by(as_stored(log["a"]), log["a"].token)
        compacted = read_again(taken_over).compacted()
        assert read_again(compacted).succeeds_released(log.holder.token)

    def test_it_keeps_rejoined_waiters_in_place(self, log: Log) -> None:
        log.add(joining(a_holder("late", since=9)), joining(a_holder("early", since=1), again=True))
        after = Log(log.holder, log.record.compacted())
        assert after.queue == ["early", "late"]
        assert after.add(joining(a_holder("middle", since=5), again=True)).queue == [
            *("early", "middle", "late"),
        ]


@pytest.mark.parametrize("length", [900_000, 15_000])
def test_long_lines_of_others_are_not_kept(log: Log, length: int) -> None:
    """A server that others can write to must not fill the memory of all its clients."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            read_again(log.stored + b"\n+i %d 1.0 " % number + b"x" * length)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000
