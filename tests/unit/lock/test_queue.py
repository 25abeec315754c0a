"""The turn, as one waiter sees it; and its poll intervals."""

from __future__ import annotations

import collections
import itertools

import pytest

from tests.leases import as_stored
from tests.unit.lock.logs import Log, a_holder, new_nonce, reserved_by
from userlock.lock.policy import Polling
from userlock.lock.queue import Decision, HoldTimes, Turn, delay
from userlock.lock.record import PATIENCE_SECONDS, done, joining


@pytest.fixture
def log() -> Log:
    return Log(a_holder("holder"))


def turn_of(log: Log, name: str) -> Turn:
    return Turn(log[name].token)


class TestTurn:
    def test_while_somebody_has_the_lock_one_waits(self, log: Log) -> None:
        log.joined_by("a", "b")
        turn = turn_of(log, "b")
        assert turn.decide(log.record, 0.0) is Decision.WAIT
        assert (turn.position, turn.patience_ends) == (1, None)
        log.add(done(log["a"].token))
        assert turn.decide(log.record, 1000.0) is Decision.WAIT
        assert (turn.position, turn.patience_ends) == (0, None)

    @pytest.mark.parametrize("how", ["released", "lapsed", "broken"])
    def test_the_first_in_line_takes_what_is_free(self, log: Log, how: str) -> None:
        log.joined_by("a", "b")
        if how == "lapsed":
            log.lapsed = True
        else:
            log.add(done(log.holder.token, by="ops" if how == "broken" else ""))
        assert turn_of(log, "a").decide(log.record, 0.0) is Decision.CLAIM
        assert turn_of(log, "b").decide(log.record, 0.0) is Decision.WAIT

    def test_whom_the_record_does_not_know_lines_up_again(self, log: Log) -> None:
        log.joined_by("b").members["a"] = a_holder("a")
        assert turn_of(log, "a").decide(log.record, 0.0) is Decision.REJOIN
        log.add(joining(log["a"], again=True))
        assert turn_of(log, "a").decide(log.record, 0.0) is Decision.WAIT


class TestPatience:
    """Waiters ahead may be dead, which is unknown until they do not take their turn."""

    def test_one_that_does_not_take_its_turn_is_passed(self, log: Log) -> None:
        log.joined_by("dead", "b").lapsed = True
        turn = turn_of(log, "b")
        assert turn.decide(log.record, 100.0) is Decision.WAIT
        ends = turn.patience_ends
        assert ends == 100.0 + PATIENCE_SECONDS
        assert turn.decide(log.record, ends - 0.001) is Decision.WAIT
        assert turn.decide(log.record, ends) is Decision.PASS

    def test_each_process_ahead_has_its_time(self, log: Log) -> None:
        """The threads of one process live and die together."""
        first, second, third = (new_nonce() for _ in range(3))
        log.joined_by("a", "b", nonce=first).joined_by("c", nonce=second)
        log.joined_by("d", nonce=first).joined_by("me", nonce=third).lapsed = True
        turn = turn_of(log, "me")
        turn.decide(log.record, 100.0)
        assert turn.patience_ends == 100.0 + 2 * PATIENCE_SECONDS

    def test_those_of_the_own_process_have_longer(self, log: Log) -> None:
        """They live, and are slow: a busy process that passes its own waiters is busier still."""
        log.joined_by("slow", "me").lapsed = True
        turn = turn_of(log, "me")
        assert turn.decide(log.record, 100.0, led=True) is Decision.WAIT
        assert turn.patience_ends == 102.0
        assert turn.decide(log.record, 101.9, led=True) is Decision.WAIT
        assert turn.decide(log.record, 102.0, led=True) is Decision.PASS
        log.add(done(log["slow"].token))
        assert turn.decide(log.record, 102.1) is Decision.CLAIM

    def test_it_restarts_with_each_holder(self, log: Log) -> None:
        """The waiter ahead took its turn, and has released the lock: now it is the next one's."""
        log.joined_by("a", "b", "me").lapsed = True
        turn = turn_of(log, "me")
        turn.decide(log.record, 100.0)
        taken_over = log.record.succeeded_by(as_stored(log["a"]), log["a"].token)
        after = Log(log["a"], taken_over, members=log.members).add(done(log["a"].token))
        assert turn.decide(after.record, 100.2) is Decision.WAIT
        assert turn.patience_ends == 100.2 + PATIENCE_SECONDS

    def test_a_reservation_does_not_restart_it(self, log: Log) -> None:
        """The caller that makes it has not held the lock."""
        log.joined_by("dead", "me").add(done(log.holder.token))
        turn = turn_of(log, "me")
        turn.decide(log.record, 100.0)
        reserved = reserved_by(log, a_holder("hasty"))
        assert turn.decide(reserved.record, 100.2) is Decision.WAIT
        assert turn.patience_ends == 100.0 + PATIENCE_SECONDS

    def test_once_a_reservation_has_lapsed_its_waiters_have_had_their_time(self, log: Log) -> None:
        """By the store's clock, however short the waiter itself has seen it."""
        log.joined_by("dead").add(done(log.holder.token))
        reserved = reserved_by(log, a_holder("hasty")).joined_by("me", "behind")
        assert turn_of(reserved, "me").decide(reserved.record, 100.0) is Decision.WAIT
        reserved.lapsed = True
        assert turn_of(reserved, "me").decide(reserved.record, 100.0) is Decision.PASS
        assert turn_of(reserved, "behind").decide(reserved.record, 100.0) is Decision.WAIT

    def test_it_restarts_when_the_holder_comes_back_to_life(self, log: Log) -> None:
        """An extension that arrived late: the record was lapsed, and is no longer."""
        log.joined_by("a", "me").lapsed = True
        turn = turn_of(log, "me")
        turn.decide(log.record, 100.0)
        log.lapsed = False
        assert turn.decide(log.record, 100.1) is Decision.WAIT
        assert turn.patience_ends is None
        log.lapsed = True
        assert turn.decide(log.record, 200.0) is Decision.WAIT

    def test_it_restarts_when_an_interactive_request_is_placed_before_batch(self, log: Log) -> None:
        """The request is alive, and has the shorter patience."""
        log.joined_by("dead").joined_by("job", priority="batch").lapsed = True
        job = turn_of(log, "job")
        job.decide(log.record, 100.0)
        log.joined_by("interactive")
        interactive = turn_of(log, "interactive")
        assert interactive.decide(log.record, 100.2) is Decision.WAIT
        assert job.decide(log.record, 100.25) is Decision.WAIT
        assert job.patience_ends == 100.25 + 2 * PATIENCE_SECONDS
        assert interactive.patience_ends is not None
        assert interactive.decide(log.record, interactive.patience_ends) is Decision.PASS
        assert job.decide(log.record, interactive.patience_ends) is Decision.WAIT

    def test_not_when_somebody_comes_to_stand_behind(self, log: Log) -> None:
        log.joined_by("dead", "me").lapsed = True
        turn = turn_of(log, "me")
        turn.decide(log.record, 100.0)
        log.joined_by("later").joined_by("job", priority="batch")
        assert turn.decide(log.record, 100.2) is Decision.WAIT
        assert turn.patience_ends == 100.0 + PATIENCE_SECONDS

    def test_whoever_leaves_is_not_waited_for(self, log: Log) -> None:
        for name in ("a", "b", "me"):
            log.joined_by(name, process=name)
        log.lapsed = True
        turn = turn_of(log, "me")
        turn.decide(log.record, 100.0)
        log.add(done(log["a"].token))
        turn.decide(log.record, 100.1)
        assert turn.patience_ends == 100.0 + PATIENCE_SECONDS
        log.add(done(log["b"].token))
        assert turn.decide(log.record, 100.2) is Decision.CLAIM


class TestGoneRecords:
    """The store has lost the record: the first waiter begins again first."""

    def test_those_behind_let_the_others_begin(self, log: Log) -> None:
        waits = []
        log.joined_by("a", "b", "c")
        for name in ("a", "b", "c"):
            turn = turn_of(log, name)
            turn.decide(log.record, 0.0)
            turn.decide(None, 10.0)
            assert turn.patience_ends is not None
            waits.append(turn.patience_ends - 10.0)
            assert turn.decide(None, turn.patience_ends) is Decision.CREATE
        assert waits[0] == 0
        assert waits == sorted(waits)
        assert len(set(waits)) == 3
        assert waits[-1] < 0.5

    def test_nobody_is_polite_for_ever(self, log: Log) -> None:
        everybody = [f"learner-{number}" for number in range(500)]
        log.joined_by(*everybody)
        turn = turn_of(log, everybody[-1])
        turn.decide(log.record, 0.0)
        turn.decide(None, 10.0)
        assert turn.decide(None, 11.0) is Decision.CREATE

    def test_when_it_is_there_again_one_lines_up_again(self, log: Log) -> None:
        log.joined_by("a", "b")
        turn = turn_of(log, "b")
        turn.decide(log.record, 0.0)
        assert turn.decide(None, 10.0) is Decision.WAIT
        assert turn.decide(Log(log["a"]).record, 10.01) is Decision.REJOIN
        log.holder = log["a"]
        assert turn.decide(None, 20.0) is Decision.WAIT, "gone again: the time counts from now"

    def test_a_caller_that_was_never_queued_begins_at_once(self) -> None:
        assert Turn("4f01").decide(None, 0.0) is Decision.CREATE


class TestHoldTimes:
    def test_it_is_guessed_as_long_as_none_was_seen(self) -> None:
        assert 0.001 <= HoldTimes().typical("interactive") <= 0.1

    @pytest.mark.parametrize(
        ("holds", "typical"),
        [
            *(
                pytest.param([hold] * 3, hold, id=f"{hold} three times")
                for hold in (0.002, 0.05, 3.0)
            ),
            pytest.param([10.0, *[0.05] * 9] * 5, 0.05, id="one slow request among many"),
            pytest.param([0.01] * 50 + [0.2] * 50, 0.2, id="a change of habits"),
        ],
    )
    def test_it_is_learnt(self, holds: list[float], typical: float) -> None:
        times = HoldTimes()
        times.latest["interactive"].extend(holds)
        assert times.typical("interactive") == pytest.approx(typical, rel=0.1)

    def test_batch_holds_are_another_matter(self) -> None:
        times = HoldTimes()
        times.latest["interactive"].append(0.01)
        times.latest["batch"].append(5.0)
        assert times.typical("interactive") < 0.1 < times.typical("batch")

    def test_another_thread_may_note_one_meanwhile(self) -> None:
        """Here it happens as soon as the first has been read."""
        times = HoldTimes()
        times.latest["interactive"].append(0.05)

        class Noted(collections.deque[float]):
            def copy(self) -> Noted:
                before = Noted(self)
                times.latest["interactive"].append(0.07)
                return before

        times.latest["interactive"] = Noted(times.latest["interactive"])
        assert times.typical("interactive") == 0.05

    @pytest.mark.parametrize("hold", [0.0, 1e-9, -1.0])
    def test_a_hold_of_no_time_is_no_reason_to_spin(self, hold: float) -> None:
        times = HoldTimes()
        times.latest["interactive"].extend([hold] * 5)
        assert times.typical("interactive") > 0


#: So wide that they have no effect.
UNBOUND = Polling(least_seconds=1e-9, most_seconds=86_400)


def looks_in(
    hold: float, polling: Polling, *, position: int = 0, typical: float = 0
) -> list[float]:
    """Return the polls of a waiter that arrives with the holder, until the lock is free."""
    looks = [0.0]
    while looks[-1] < hold:
        looks.append(looks[-1] + delay(position, typical or hold, looks[-1], polling))
    return looks[1:]


class TestDelay:
    def test_it_looks_twice_before_the_usual_end(self) -> None:
        assert looks_in(1.0, UNBOUND)[:2] == [0.45, 0.9]

    @pytest.mark.parametrize("hold", [0.005, 5.0])
    def test_the_first_in_line_looks_about_ten_times_in_a_usual_hold(self, hold: float) -> None:
        looks = looks_in(hold, UNBOUND)
        assert 3 <= len(looks) <= 12
        assert looks[-1] - hold <= 0.1 * hold, "and sees its end soon"

    @pytest.mark.parametrize("factor", [0.1, 1.5, 3.0, 100.0])
    def test_an_unusual_hold_costs_a_part_of_itself_or_of_the_usual_one(
        self, factor: float
    ) -> None:
        typical = 0.05
        looks = looks_in(factor * typical, UNBOUND, typical=typical)
        assert looks[-1] - factor * typical <= max(0.1 * factor, 0.5) * typical
        assert len(looks) <= 80

    @pytest.mark.parametrize("position", [0, 1, 2, 10, 1000])
    def test_nobody_spins_and_nobody_sleeps_for_long(self, position: int) -> None:
        polling = Polling(least_seconds=0.001, most_seconds=0.05)
        typical = (0.0001, 0.01, 1.0, 1000.0)
        for usual, held in itertools.product(typical, (0.0, 0.0001, 0.009, 0.01, 1.0, 1e6)):
            seconds = delay(position, usual, held, polling)
            assert polling.least_seconds <= seconds <= 0.25
            if position == 0:
                assert seconds <= polling.most_seconds
            else:
                assert seconds >= 10 * polling.least_seconds

    @pytest.mark.parametrize(("position", "seconds"), [(1, 0.1), (2, 0.25), (100, 0.25)])
    def test_those_behind_that_are_woken_poll_only_for_the_death_of_those_ahead(
        self, position: int, seconds: float
    ) -> None:
        """With the patience of 0.25 s a dead waiter costs half a second at most."""
        for typical in (0.001, 0.01, 10.0):
            assert delay(position, typical, 0.0, Polling(), woken=True) == seconds

    @pytest.mark.parametrize("length", [2, 10, 100])
    def test_a_long_queue_polls_little_more_than_a_short_one(self, length: int) -> None:
        """All together: about twice the logarithm of the queue's length in each hold."""
        hold, holds = 0.005, 200

        def looks_per_hold(position: int) -> float:
            now, looks = 0.0, 0
            while now < hold * holds:
                now += delay(position, hold, now % hold, Polling())
                looks += 1
            return looks / holds

        asked = sum(looks_per_hold(position) for position in range(1, length))
        assert asked <= 2.1 * sum(1 / position for position in range(1, length))

    def test_polling_equally_at_each_position_would_cost_much_more(self) -> None:
        """The negative control."""
        assert 100 * len(looks_in(0.005, Polling())) > 10 * 20
