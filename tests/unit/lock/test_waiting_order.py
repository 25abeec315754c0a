"""Waiting in the queue, with simulated processes: the order and times of grants."""

from __future__ import annotations

import dataclasses

import pytest

from tests.unit.lock.crowd import LOCK, Crowd, gathering
from userlock import LockPolicy
from userlock.lock.record import PATIENCE_SECONDS, Record
from userlock.testing import ManualClock

NAMES = [f"learner-{number}" for number in range(8)]


def come_one_by_one(crowd: Crowd, *, every: float = 0.003, hold: float = 0.02) -> None:
    for number, name in enumerate(NAMES):
        crowd.comes(name, after=every * number, hold=hold)


class TestOrder:
    def test_waiters_are_served_in_order_of_arrival(self, crowd: Crowd) -> None:
        come_one_by_one(crowd)
        crowd.ends()
        assert crowd.order == NAMES
        assert crowd.violations == []
        assert crowd.store.read(LOCK) is None, "and nothing is left behind"

    def test_hand_offs_cost_a_small_part_of_a_hold(self, crowd: Crowd) -> None:
        come_one_by_one(crowd, hold=0.05)
        crowd.ends()
        assert crowd.now < len(NAMES) * 0.05 * 1.15

    def test_without_positions_they_are_not(
        self, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control: each waiter takes itself for the first in the queue."""
        position_of = Record.position_of

        def first(record: Record, token: str) -> int | None:
            return None if position_of(record, token) is None else 0

        monkeypatch.setattr(Record, "position_of", first)
        come_one_by_one(crowd)
        crowd.ends()
        assert crowd.order != NAMES
        assert crowd.violations

    def test_threads_of_one_process_queue_like_others(self, crowd: Crowd) -> None:
        process = crowd.world.process("web")
        for number, name in enumerate(NAMES):
            crowd.comes(name, after=0.003 * number, process=process)
        crowd.ends()
        assert crowd.order == NAMES
        assert crowd.violations == []

    def test_a_timed_out_waiter_leaves_the_queue(self, crowd: Crowd) -> None:
        crowd.comes("holder", hold=1.0)
        crowd.comes("a", after=0.1, wait_timeout=0.5)
        crowd.comes("b", after=0.2)
        crowd.passes(0.3)
        assert crowd.queue == ["a", "b"]
        crowd.passes(0.4)
        assert crowd.when("a", "gave up") == pytest.approx(0.6)
        assert crowd.queue == ["b"]
        crowd.ends()
        assert crowd.order == ["holder", "b"]
        assert crowd.when("b") < 1.05, "nobody had to be waited for"


class TestPriority:
    def people_and_jobs(self, crowd: Crowd) -> None:
        crowd.comes("holder", hold=0.5)
        crowd.comes("job-1", after=0.1, priority="batch")
        crowd.comes("ann", after=0.2)
        crowd.comes("job-2", after=0.3, priority="batch")
        crowd.comes("bob", after=0.4)
        crowd.ends()

    def test_batch_is_served_when_no_interactive_request_waits(self, crowd: Crowd) -> None:
        self.people_and_jobs(crowd)
        assert crowd.order == ["holder", "ann", "bob", "job-1", "job-2"]
        assert crowd.violations == []

    def test_without_priorities_batch_would_pass(
        self, crowd: Crowd, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control."""
        monkeypatch.setattr(Record, "_ranks_as_batch", lambda *_: False)
        self.people_and_jobs(crowd)
        assert crowd.order == ["holder", "job-1", "ann", "job-2", "bob"]
        assert crowd.violations

    @pytest.mark.parametrize("ages_after", [0.4, None])
    def test_a_stream_of_interactive_requests_does_not_starve_batch(
        self, clock: ManualClock, ages_after: float | None
    ) -> None:
        """With ageing it ranks as interactive in the end; without (the control) it does not."""
        default = LockPolicy()
        policy = dataclasses.replace(
            default, batch=dataclasses.replace(default.batch, ages_after=ages_after)
        )
        with gathering(clock, policy) as crowd:
            for number in range(30):  # each arrives before the last one leaves
                crowd.comes(f"learner-{number}", after=0.05 * number, hold=0.055)
            crowd.comes("job", after=0.02, priority="batch")
            crowd.ends()
            assert crowd.violations == []
            if ages_after is None:
                assert crowd.order[-1] == "job"
            else:
                # By then the waiters before it are those that arrived faster than they were served.
                assert ages_after < crowd.when("job") < ages_after + 1.0


class TestTheDead:
    def test_when_a_holder_dies_the_first_waiter_is_next(self, crowd: Crowd) -> None:
        dead = crowd.comes("dead", hold=100.0, lock_timeout=2.0)
        crowd.comes("a", after=0.1)
        crowd.comes("b", after=0.2)
        crowd.passes(0.3)
        crowd.world.kill(dead)
        crowd.ends()
        assert crowd.order == ["dead", "a", "b"]
        assert 2.0 <= crowd.when("a") < 2.1
        assert crowd.violations == []

    def test_a_newcomer_cannot_pass_while_nobody_has_it(self, crowd: Crowd) -> None:
        """The record still exists: the first waiter is next."""
        dead = crowd.comes("dead", hold=100.0, lock_timeout=2.0)
        waiter = crowd.comes("a", after=0.1)
        crowd.passes(1.0)
        crowd.world.kill(dead)
        waiter.paused = True
        crowd.passes(1.1)
        for name, wait in (("once", 0.0), ("b", 10.0)):
            crowd.comes(name, wait_timeout=wait)
        crowd.passes(0.01)
        assert crowd.when("once", "gave up") == pytest.approx(2.1)
        assert crowd.queue == ["a", "b"]
        waiter.paused = False
        crowd.ends()
        assert crowd.order == ["dead", "a", "b"]
        assert crowd.violations == []

    def test_a_dead_waiter_is_passed_at_its_turn(self, crowd: Crowd) -> None:
        crowd.comes("holder", hold=1.0)
        dead = crowd.comes("dead", after=0.1)
        crowd.comes("b", after=0.2)
        crowd.comes("c", after=0.3)
        crowd.passes(0.5)
        crowd.world.kill(dead)
        crowd.ends()
        assert crowd.order == ["holder", "b", "c"]
        assert 1.0 + PATIENCE_SECONDS <= crowd.when("b") < 1.0 + PATIENCE_SECONDS + 0.05
        assert crowd.when("c") < crowd.when("b") + 0.1, "it is waited for once"
        assert crowd.violations == []

    def test_a_process_that_died_is_waited_for_once(self, crowd: Crowd) -> None:
        """However many of its threads were queued."""
        processes = 3
        dead = [crowd.world.process(f"web-{number}") for number in range(processes)]
        crowd.comes("holder", hold=1.0)
        for number in range(6):
            crowd.comes(f"dead-{number}", after=0.1, process=dead[number % processes])
        crowd.comes("b", after=0.2)
        crowd.passes(0.5)
        for process in dead:
            crowd.world.kill(process)
        crowd.ends()
        patience = processes * PATIENCE_SECONDS
        assert 1.0 + patience <= crowd.when("b") < 1.0 + patience + 0.1

    def test_a_paused_waiter_returns_before_later_ones(self, crowd: Crowd) -> None:
        crowd.comes("holder", hold=1.0)
        paused = crowd.comes("paused", after=0.1)
        crowd.comes("b", after=0.2, hold=1.0)
        crowd.comes("c", after=0.3)
        crowd.comes("d", after=0.4)
        crowd.passes(0.5)
        paused.paused = True
        crowd.passes(1.5)
        assert crowd.order == ["holder", "b"]
        assert crowd.queue == ["c", "d"]
        paused.paused = False
        crowd.passes(0.1)
        assert crowd.queue == ["paused", "c", "d"]
        crowd.ends()
        assert crowd.order == ["holder", "b", "paused", "c", "d"]
        assert crowd.violations == []


class TestLostRecords:
    def test_those_who_waited_begin_again_in_their_order(self, crowd: Crowd) -> None:
        crowd.comes("holder", hold=1.0)
        for number, name in enumerate(NAMES):
            crowd.comes(name, after=0.1 + 0.01 * number)
        crowd.passes(0.5)
        crowd.world.watch.forget(LOCK)
        crowd.ends()
        assert crowd.order == ["holder", *NAMES]
        assert crowd.when(NAMES[0]) < 0.6, "the store has forgotten that it is held"
        assert crowd.violations == []

    def test_a_paused_waiter_does_not_restore_waiters_that_have_left(self, crowd: Crowd) -> None:
        """Otherwise the lock would wait for the waiters of the old queue, which are gone."""
        crowd.comes("holder", hold=1.0)
        for name in ("a", "b", "c"):
            crowd.comes(name, after=0.1)
        paused = crowd.comes("paused", after=0.2, hold=0.5)
        crowd.passes(0.5)
        paused.paused = True
        crowd.passes(4.0)
        assert crowd.order == ["holder", "a", "b", "c"]
        crowd.world.watch.forget(LOCK)
        paused.paused = False
        crowd.passes(0.4)
        assert crowd.order[-1] == "paused"
        crowd.comes("later")
        crowd.ends()
        assert crowd.when("later") - crowd.when("paused") < 0.5 + PATIENCE_SECONDS

    def test_a_waiter_that_was_passed_does_not_restore_those_served_since(
        self, crowd: Crowd
    ) -> None:
        """Nobody would be there to remove the record: a free lock with a queue of nobody."""
        crowd.comes("holder", hold=1.0)
        paused = crowd.comes("paused", after=0.1)
        for name in ("a", "b"):
            crowd.comes(name, after=0.2)
        crowd.passes(0.95)
        paused.paused = True
        crowd.passes(0.5)
        assert crowd.order == ["holder", "a", "b"]
        assert crowd.store.read(LOCK) is None
        paused.paused = False
        crowd.ends()
        assert crowd.order[-1] == "paused"
        assert crowd.store.read(LOCK) is None, "and nothing is left behind"

    def test_nor_does_a_waiter_that_has_to_queue_again(self, crowd: Crowd) -> None:
        """They are served while its entry is on its way."""
        crowd.comes("holder", hold=1.0)
        paused = crowd.comes("paused", after=0.1)
        crowd.comes("a", after=0.2, hold=1.0)
        crowd.comes("b", after=0.3)
        crowd.passes(0.95)
        paused.paused = True
        crowd.passes(0.55)
        assert (crowd.order, crowd.queue) == (["holder", "a"], ["b"])
        crowd.store.before("append", lambda: crowd.store.evict(LOCK))
        paused.paused = False
        crowd.passes(0.001)  # before b polls
        assert crowd.order[-1] == "paused"
        assert crowd.queue == []
