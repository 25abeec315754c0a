"""A lock's record: who holds it and who waits, from lines that anybody may have written."""

from __future__ import annotations

import pytest

from tests.unit.lock.logs import Log, a_holder, names, new_nonce, offered_by, read_again
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
    def test_it_is_read_as_it_was_written(self, log: Log) -> None:
        assert log.record.holder == log.holder
        assert (log.record.free, log.record.lapsed, log.record.empty) == (False, False, True)

    @pytest.mark.parametrize(
        "text",
        ["", "GET /ü?漢字=🔒", 'a "quoted" \\ one', "a\nb\r\n= 0001", "\x00\x1b[31m", "\ud800"],
    )
    def test_whatever_it_says_of_itself_is_no_line_of_its_own(self, text: str) -> None:
        """A request's path comes from outside."""
        holder = a_holder()._replace(request=text, process=text)
        waiter = a_holder()._replace(request=text, process=text)
        record = Log(holder).add(joining(waiter)).record
        assert record.holder.token == holder.token
        assert not record.free
        (seen,) = record.waiters()
        shown = "".join(c if c.isprintable() else "?" for c in text)
        assert (seen.token, seen.request, seen.process) == (waiter.token, shown, shown)
        assert (record.holder.request, record.holder.process) == (shown, shown)

    def test_one_that_is_done_leaves_the_lock_free(self, log: Log) -> None:
        record = log.add(done(log.holder.token)).record
        assert (record.released, record.free, record.broken_by) == (True, True, "")

    def test_another_that_is_done_does_not(self, log: Log) -> None:
        """A late line of an earlier holder, say."""
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
    def test_a_note_that_makes_no_sense_was_left_by_somebody(self, log: Log, note: bytes) -> None:
        record = log.add(done(log.holder.token), b" ", note).record
        assert record.broken_by in ("somebody", "?")

    def test_it_says_what_it_waits_for_itself(self, log: Log) -> None:
        on = BlockedOn("an\nother 🔒", 1_700_000_000.5, "4f05")
        assert log.record.blocked_on is None
        assert log.add(blocked(log.holder.token, on)).record.blocked_on == on
        assert log.add(blocked(log.holder.token, None)).record.blocked_on is None
        assert log.add(blocked(log.holder.token, on)).record.blocked_on == on, "the last one counts"

    def test_what_others_wait_for_is_not_what_it_waits_for(self, log: Log) -> None:
        on = BlockedOn("other", 1.0, "4f05")
        assert log.add(blocked("0ther", on)).record.blocked_on is None


class TestLine:
    def test_those_who_wait_are_served_in_the_order_in_which_they_came(self, log: Log) -> None:
        assert log.joined_by("a", "b", "c").line == ["a", "b", "c"]
        record = log.record
        assert [record.position_of(log[name].token) for name in "abc"] == [0, 1, 2]
        assert record.position_of("nobody") is None
        assert not record.empty

    def test_a_waiter_is_as_it_said(self, log: Log) -> None:
        waiter = a_holder("GET /", priority="batch", since=0.1234, process="jobs-1/9")
        (seen,) = log.add(joining(waiter)).record.waiters()
        assert seen == Waiter(waiter.token, "batch", 1_700_000_000.123, "jobs-1/9", "GET /", False)

    def test_people_are_served_before_batch(self, log: Log) -> None:
        log.joined_by("a", priority="batch").joined_by("b").joined_by("c", priority="batch")
        assert log.joined_by("d").line == ["b", "d", "a", "c"]
        assert log.record.interactive_waits

    def test_batch_alone_is_no_person(self, log: Log) -> None:
        assert not log.record.interactive_waits
        assert not log.joined_by("a", priority="batch").record.interactive_waits

    def test_batch_that_has_waited_long_ranks_with_people(self, log: Log) -> None:
        """By when it began to wait: from then on nobody who comes can pass it."""
        log.joined_by("a", "b", priority="batch").joined_by("c")
        log.add(aged(log["b"].token)).joined_by("d")
        assert log.line == ["b", "c", "d", "a"]
        assert [waiter.aged for waiter in log.record.waiters()] == [True, False, False, False]
        assert log.record.interactive_waits

    def test_who_is_done_waits_no_longer(self, log: Log) -> None:
        log.joined_by("a", "b", "c").add(done(log["b"].token))
        assert log.line == ["a", "c"]
        assert log.record.position_of(log["b"].token) is None

    def test_the_end_may_come_before_the_beginning(self, log: Log) -> None:
        """A line that was sent again, after its sender had given up."""
        late = a_holder("late")
        log.add(joining(late), done(late.token), joining(late), joining(late, again=True))
        assert log.record.empty

    def test_a_line_that_was_sent_twice_counts_once(self, log: Log) -> None:
        log.joined_by("a", "b").add(joining(log["a"]), joining(log["b"], again=True))
        assert log.line == ["a", "b"]

    def test_who_comes_back_stands_before_those_who_began_later(self, log: Log) -> None:
        """After its record was lost, or it was passed over while it was paused."""
        first, second, third, fourth = (
            a_holder(name, since=since) for since, name in enumerate(["a", "b", "c", "d"])
        )
        log.add(joining(second), joining(fourth))
        log.add(joining(third, again=True), joining(first, again=True))
        assert log.line == ["a", "b", "c", "d"]

    def test_by_when_they_began_to_wait(self, log: Log) -> None:
        late, early = a_holder("late", since=9), a_holder("early", since=1)
        log.add(joining(late), joining(early, again=True))
        assert log.line == ["early", "late"]

    def test_who_comes_for_the_first_time_stands_last_whatever_its_clock_says(
        self, log: Log
    ) -> None:
        late, early = a_holder("late", since=9), a_holder("early", since=-1000)
        log.add(joining(late), joining(early))
        assert log.line == ["late", "early"]

    def test_the_processes_ahead(self, log: Log) -> None:
        """By what their tokens begin with; their labels are for people."""
        nonce = new_nonce()
        log.joined_by("a", "b", nonce=nonce, process="web/1").joined_by("c", process="web/1")
        log.joined_by("d", nonce=nonce, process="web/2")
        assert [log.record.processes_ahead_of(log[name].token) for name in "abcd"] == [0, 1, 1, 2]
        assert log.record.processes_ahead_of("nobody") == 2, "everybody is ahead of a newcomer"

    @pytest.mark.parametrize(("besides", "processes"), [("c", 1), ("d", 2)])
    def test_a_reservation_lives_for_each_process_but_the_callers_own(
        self, log: Log, besides: str, processes: int
    ) -> None:
        nonce = new_nonce()
        log.joined_by("a", "b", nonce=nonce, process="web/1").joined_by("c", process="web/1")
        log.joined_by("d", nonce=nonce, process="web/2")
        by = a_holder()
        _, seconds = log.record.reserved_by(
            by.encode(), by.token, besides=log[besides].token, leaving=True
        )
        assert seconds == PATIENCE_SECONDS * (processes + 1)


class TestTurns:
    """Whether one may claim the lock by what the record says, without having seen it for long."""

    def test_a_lock_that_is_held_is_nobodys_to_claim(self, log: Log) -> None:
        assert not log.record.is_turn_of("nobody")
        log.joined_by("a")
        assert not log.record.is_turn_of(log["a"].token)

    def test_one_that_is_free_is_for_the_first_in_line(self, log: Log) -> None:
        log.add(done(log.holder.token))
        assert log.record.is_turn_of("nobody")
        log.joined_by("a", "b")
        turns = [log.record.is_turn_of(token) for token in (log["a"].token, log["b"].token, "x")]
        assert turns == [True, False, False]

    def test_one_that_has_lapsed_was_offered_to_nobody(self, log: Log) -> None:
        log.joined_by("a").lapsed = True
        assert not log.record.is_turn_of("nobody")

    def test_an_offer_is_for_those_who_were_in_line_then(self, log: Log) -> None:
        log.joined_by("a", "b").add(done(log.holder.token))
        offered = offered_by(log, a_holder("hasty")).joined_by("c")
        assert offered.line == ["a", "b", "c"]
        offered.lapsed = True
        assert offered.record.is_turn_of(offered["c"].token)
        assert not offered.record.is_turn_of("nobody")
        offered.add(done(offered["c"].token))
        assert offered.record.is_turn_of("nobody")

    def test_until_it_has_lapsed_it_changes_nothing(self, log: Log) -> None:
        log.joined_by("a", "b").lapsed = True
        offered = offered_by(log, a_holder("hasty"))
        assert offered.record.free
        assert offered.record.is_turn_of(log["a"].token)
        assert not offered.record.is_turn_of(log["b"].token)

    def test_an_offer_is_made_once(self, log: Log) -> None:
        """Each is a change of the record, and the first in line is about to claim it."""
        log.joined_by("a")
        assert not log.record.can_be_reserved_by("me"), "somebody has the lock"
        log.add(done(log.holder.token))
        assert log.record.can_be_reserved_by("me")
        assert not log.record.can_be_reserved_by(log["a"].token), "nobody else is there"
        offered = offered_by(log, a_holder("hasty")).joined_by("b")
        assert not offered.record.can_be_reserved_by("me")
        offered.lapsed = True
        assert offered.record.can_be_reserved_by("me"), "for the one that came after it"

    def test_whoever_gives_up_with_it_is_in_line_no_longer(self, log: Log) -> None:
        log.joined_by("a", "hasty", "b").add(done(log.holder.token))
        by = a_holder()
        hasty = log["hasty"].token
        offered, _ = log.record.reserved_by(by.encode(), by.token, besides=hasty, leaving=True)
        assert names(read_again(offered)) == ["a", "b"]
        offered, _ = log.record.reserved_by(by.encode(), by.token, besides=hasty, leaving=False)
        assert names(read_again(offered)) == ["a", "hasty", "b"]

    def test_who_claims_it_has_the_lock_from_the_last_one_who_had_it(self, log: Log) -> None:
        """That one may still be about to look what became of its release."""
        log.joined_by("a").add(done(log.holder.token))
        hasty = a_holder("hasty")
        offered = offered_by(log, hasty).record
        assert offered.succeeds_released(log.holder.token)
        after = read_again(offered.succeeded_by(log["a"].encode(), log["a"].token))
        assert after.succeeds_released(log.holder.token)
        assert not after.succeeds_released(hasty.token)

    def test_nobody_else_can_say_that_a_lock_was_offered(self, log: Log) -> None:
        log.joined_by("a").add(done(log.holder.token), b"\n? 0ther").lapsed = True
        assert not log.record.is_turn_of("nobody")


class TestSuccession:
    """What stands there when the next one has taken over."""

    def take_over(self, log: Log, name: str, *, passing: bool = False) -> Record:
        successor = log[name]._replace(since=1_700_000_099.0)
        record = log.record.succeeded_by(successor.encode(), successor.token, passing=passing)
        after = read_again(record)
        assert after.holder == successor
        return after

    def test_the_others_wait_on_in_their_order(self, log: Log) -> None:
        log.joined_by("a", priority="batch").joined_by("b", "c", "d").add(done(log["c"].token))
        log.add(aged(log["a"].token), done(log.holder.token))
        after = self.take_over(log, "a")
        assert names(after) == ["b", "d"]
        assert (after.free, after.broken_by) == (False, "")

    def test_what_they_said_is_kept(self, log: Log) -> None:
        log.joined_by("a").joined_by("b", priority="batch", process='"ü"/1')
        log.add(aged(log["b"].token), done(log.holder.token))
        before = log.record.waiters()
        assert self.take_over(log, "a").waiters() == before[1:]

    def test_it_says_whom_it_has_succeeded(self, log: Log) -> None:
        log.joined_by("a").add(done(log.holder.token))
        after = self.take_over(log, "a")
        assert after.succeeds_released(log.holder.token)
        assert not after.succeeds_released(log["a"].token)
        assert not after.succeeds_released(log.holder.token[:-1])

    def test_taking_over_what_lapsed_is_another_matter(self, log: Log) -> None:
        log.joined_by("a").lapsed = True
        assert not self.take_over(log, "a").succeeds_released(log.holder.token)

    def test_so_is_breaking_it(self, log: Log) -> None:
        log.joined_by("a").add(done(log.holder.token, by="ops"))
        after = self.take_over(log, "a")
        assert not after.succeeds_released(log.holder.token)
        assert after.succeeds_broken(log.holder.token) == "ops"
        assert after.succeeds_broken(log["a"].token) == ""
        assert (after.free, after.broken_by) == (False, "")

    def test_those_who_were_passed_have_to_line_up_again(self, log: Log) -> None:
        log.joined_by("a", "b", "c", "d").lapsed = True
        after = self.take_over(log, "c", passing=True)
        assert names(after) == ["d"]
        back = Log(log["c"], after.stored.record).add(joining(log["a"], again=True))
        assert back.line == ["a", "d"], "before those who came after it"

    def test_without_passing_everybody_stays(self, log: Log) -> None:
        log.joined_by("a", "b", "c").lapsed = True
        assert names(self.take_over(log, "c")) == ["a", "b"]

    def test_who_passes_as_batch_passes_people_too(self, log: Log) -> None:
        """All those ahead have had their time, whatever their rank."""
        log.joined_by("job", priority="batch").joined_by("person").lapsed = True
        assert names(self.take_over(log, "job", passing=True)) == []

    def test_who_stands_in_no_line_passes_everybody_or_nobody(self, log: Log) -> None:
        log.joined_by("a", "b").people["newcomer"] = a_holder("newcomer")
        assert names(self.take_over(log, "newcomer")) == ["a", "b"]
        assert names(self.take_over(log, "newcomer", passing=True)) == []

    def test_a_succession_of_many_loses_nobody(self, log: Log) -> None:
        everybody = [f"learner-{number}" for number in range(500)]
        log.joined_by(*everybody)
        served = []
        while not log.record.empty:
            log.add(done(log.holder.token))
            first = log.record.waiters()[0].request
            after = self.take_over(log, first)
            served.append(first)
            log = Log(log[first], after.stored.record, people=log.people)
        assert served == everybody


class TestCompaction:
    def test_it_forgets_those_who_are_done_and_nothing_else(self, log: Log) -> None:
        log.joined_by("a", "b").joined_by("c", priority="batch")
        log.add(done(log["a"].token), aged(log["c"].token), b"\nnonsense")
        before, after = log.record, read_again(log.record.compacted())
        assert after.holder == before.holder
        assert after.waiters() == before.waiters()
        assert len(after.stored.record) < len(before.stored.record)
        assert after.compacted() == after.stored.record

    def test_it_keeps_what_the_holder_waits_for(self, log: Log) -> None:
        on = BlockedOn("other", 1.5, "4f05")
        log.add(blocked(log.holder.token, on), blocked("0ther", BlockedOn("a third", 1.0, "x")))
        assert read_again(log.record.compacted()).blocked_on == on

    def test_it_keeps_whom_the_holder_has_succeeded(self, log: Log) -> None:
        """That one may still be about to look what became of its release."""
        log.joined_by("a").add(done(log.holder.token))
        taken_over = log.record.succeeded_by(log["a"].encode(), log["a"].token)
        compacted = read_again(taken_over).compacted()
        assert read_again(compacted).succeeds_released(log.holder.token)

    def test_it_keeps_those_who_came_back_where_they_stand(self, log: Log) -> None:
        log.add(joining(a_holder("late", since=9)), joining(a_holder("early", since=1), again=True))
        after = Log(log.holder, log.record.compacted())
        assert after.line == ["early", "late"]
        assert after.add(joining(a_holder("middle", since=5), again=True)).line == [
            *("early", "middle", "late"),
        ]
