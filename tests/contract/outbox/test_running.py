"""Running: under the owner's lock, claimed and removed by compare-and-swap, correct without it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.conftest import EACH_MODE
from tests.contract.outbox.conftest import (
    Learner,
    Mailbox,
    add_point,
    points,
    rows,
)
from tests.unit.emulator.waiting import Started
from userlock.events import LISTENERS, JobRan
from userlock.outbox import Outbox, Outcome, Retry, arguments
from userlock.outbox import worker as worker_module
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


@pytest.fixture
def runs() -> Any:
    """Collect the runs."""
    seen: list[tuple[str, str, int]] = []

    def listener(event: Any) -> None:
        if isinstance(event, JobRan):
            seen.append((event.job.rpartition(".")[2], event.outcome, event.attempt))

    LISTENERS.add(listener)
    yield seen
    LISTENERS.remove(listener)


@EACH_MODE
class TestUnderTheLock:
    def test_it_holds_its_owners_lock(
        self, outbox: Outbox, mailbox: Mailbox, service: userlock.LockService
    ) -> None:
        seen = []

        @outbox.job
        def work(user_id: str) -> None:
            holder = service.holder("ann")
            assert holder is not None
            seen.append((holder.priority, holder.request.rpartition(" ")[0]))
            add_point(user_id)

        work.stage_now("ann")
        assert mailbox.deliver_all() == [Outcome.RAN]
        assert seen == [("batch", "job")]
        assert points() == 1
        assert service.holder("ann") is None

    def test_a_busy_owner_costs_no_attempt(
        self,
        outbox: Outbox,
        mailbox: Mailbox,
        service: userlock.LockService,
        runs: list[Any],
    ) -> None:
        @outbox.job
        def work(user_id: str) -> None:
            add_point(user_id)

        staged = work.stage_now("ann")
        mailbox.messages.clear()
        lease = service.acquire("ann")
        for _ in range(20):
            assert outbox.run(staged.key) is Outcome.BUSY
        service.release(lease)
        assert [row.attempts for row in rows()] == [0]
        assert len({each.name for each in mailbox.messages}) == 20, "no engine drops them"
        assert all(each.delay > 0 for each in mailbox.messages)
        assert outbox.run(staged.key) is Outcome.RAN
        assert runs == [("work", "done", 1)]

    def test_a_write_that_is_still_under_way_is_waited_for(
        self, outbox: Outbox, mailbox: Mailbox
    ) -> None:
        @outbox.job
        def work(user_id: str) -> None:
            Learner(id=user_id, points=7).put_async()

        work.stage_now("ann")
        mailbox.deliver_all()
        assert points() == 7
        assert rows() == []

    def test_a_lost_update_is_a_failure_and_runs_again(
        self, outbox: Outbox, mailbox: Mailbox, runs: list[Any], clock: ManualClock
    ) -> None:
        with userlock.global_lock("ann"):
            Learner(id="ann", points=1).put()

        @outbox.job
        def work(user_id: str) -> None:
            learner = Learner.get_by_id(user_id, use_cache=False)
            if learner.points == 1:
                with userlock.suppress("another process"):
                    other = Learner.get_by_id(user_id, use_cache=False)
                    other.points += 10
                    other.put()
            learner.points += 1
            learner.put_async()

        work.stage_now("ann")
        mailbox.deliver_all()
        clock.advance(60)
        outbox.relay()
        mailbox.deliver_all()
        assert runs == [("work", "failed", 1), ("work", "done", 2)]
        assert points() == 12


class TestBusyOwners:
    """A long job, and many messages for its owner's others."""

    def test_a_job_that_runs_is_left_to_the_relay(
        self, outbox: Outbox, mailbox: Mailbox, clock: ManualClock
    ) -> None:
        outcomes = []

        @outbox.job
        def slow(user_id: str) -> None:
            mailbox.messages.clear()
            for _ in range(5):
                clock.advance(1)
                outcomes.append(Started(lambda: outbox.run(staged.key)).result())
            assert mailbox.messages == [], "no message for what is running"

        staged = slow.stage_now("ann")
        assert outbox.run(staged.key) is Outcome.RAN
        assert set(outcomes) == {Outcome.BUSY}
        assert rows() == []

    def test_messages_come_more_and_more_seldom_and_wait_once(
        self,
        outbox: Outbox,
        mailbox: Mailbox,
        clock: ManualClock,
        service: userlock.LockService,
    ) -> None:
        staged = outbox.job(name="work")(lambda user_id: None).stage_now("ann")
        lease = service.acquire("ann", lock_timeout=86_400)
        mailbox.messages.clear()
        waits, pauses = [], []
        for _ in range(12):
            before = clock.now()
            outbox.run(staged.key)
            waits.append(clock.now() - before)
            pauses.append(mailbox.messages.pop().delay)
            clock.advance(100)
        assert waits[0] >= 2
        assert max(waits[1:]) < 0.1
        assert pauses[0] <= 5
        assert 30 <= pauses[-1] <= 60
        service.release(lease)


class TestNamespaces:
    @pytest.mark.parametrize("transactional", [True, False])
    def test_a_job_runs_in_the_namespace_that_staged_it(
        self, outbox: Outbox, mailbox: Mailbox, transactional: bool
    ) -> None:
        @outbox.job(transactional=transactional)
        def work(user_id: str) -> None:
            add_point(user_id)

        with ndb.context.get_context().new(namespace="tenant").use():
            work.stage_now("ann")
        mailbox.messages.clear()
        assert outbox.relay().woken == 1, "the relay looks at all namespaces"
        mailbox.deliver_all()
        assert points() is None
        with ndb.context.get_context().new(namespace="tenant").use():
            assert points() == 1
            assert rows() == []
        assert rows() == []


@EACH_MODE
class TestTransactional:
    @pytest.fixture
    def work(self, outbox: Outbox) -> Any:
        @outbox.job(transactional=True)
        def work(user_id: str) -> None:
            add_point(user_id)

        return work

    def test_writes_and_removal_are_one_commit(self, work: Any, mailbox: Mailbox) -> None:
        work.stage_now("ann")
        mailbox.deliver_all()
        assert (points(), rows()) == (1, [])

    def test_an_error_rolls_both_back(
        self, outbox: Outbox, mailbox: Mailbox, runs: list[Any]
    ) -> None:
        @outbox.job(transactional=True, never_retry=[ZeroDivisionError])
        def work(user_id: str) -> None:
            add_point(user_id)
            raise ZeroDivisionError

        work.stage_now("ann")
        mailbox.deliver_all()
        assert points() is None
        assert runs == [("work", "dead", 1)]

    @pytest.mark.usefixtures("quick_retries")
    @pytest.mark.parametrize("skip", range(3))
    @pytest.mark.parametrize("fault", ["abort", "drop_reply", "unavailable"])
    def test_faults_at_each_commit_write_it_once(
        self,
        work: Any,
        mailbox: Mailbox,
        outbox: Outbox,
        clock: ManualClock,
        datastore: userlock_emulator.Emulator,
        fault: str,
        skip: int,
    ) -> None:
        """The commits: staging, claim, run."""
        with getattr(datastore.faults, fault)(rpc="Commit", skip=skip) as planted:
            work.stage_now("ann")
            for _ in range(3):
                mailbox.deliver_all()
                clock.advance(1000)
                outbox.relay()
            mailbox.deliver_all()
            assert planted.hits == 1
        assert (points(), rows()) == (1, [])


class TestTheClaim:
    def test_a_second_message_finds_nothing(self, outbox: Outbox, mailbox: Mailbox) -> None:
        @outbox.job
        def work(user_id: str) -> None:
            add_point(user_id)

        staged = work.stage_now("ann")
        assert [outbox.run(staged.key) for _ in range(3)] == [Outcome.RAN, *[Outcome.NOTHING] * 2]
        assert points() == 1

    @pytest.mark.parametrize("protected", [True, False])
    def test_without_the_lock_one_worker_claims_it(
        self,
        outbox: Outbox,
        ndb_client: ndb.Client,
        store: MemoryStore,
        protected: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Both have a degraded lock. The control: a claim that does not compare."""
        if not protected:
            monkeypatch.setattr(worker_module, "_is_claimed", lambda *_, **__: False)
        inside = []
        begun, go_on = threading.Event(), threading.Event()

        @outbox.job
        def work(user_id: str) -> None:
            inside.append(user_id)
            if not begun.is_set():
                begun.set()
                assert go_on.wait(10)

        staged = work.stage_now("ann")
        store.go_down()
        first = Started(lambda: outbox.run(staged.key))
        try:
            assert begun.wait(10)
            second = outbox.run(staged.key)
        finally:
            go_on.set()
        assert first.result() is Outcome.RAN
        store.come_back()
        assert (second, len(inside)) == ((Outcome.NOTHING, 1) if protected else (Outcome.RAN, 2))

    @pytest.mark.parametrize("protected", [True, False])
    @pytest.mark.parametrize("transactional", [True, False])
    def test_a_worker_that_was_passed_finishes_nothing(
        self,
        outbox: Outbox,
        store: MemoryStore,
        runs: list[Any],
        monkeypatch: pytest.MonkeyPatch,
        transactional: bool,
        protected: bool,
    ) -> None:
        """It is paused for longer than its lease before it runs the job; another one runs it
        meanwhile, fails, and is to run it again. The control: no comparison of the claims."""
        if not protected:
            monkeypatch.setattr(worker_module, "_is_mine", lambda *_: True)
        calls, decoded = [], []

        @outbox.job(transactional=transactional)
        def work(user_id: str) -> None:
            calls.append(1)
            add_point(user_id)
            if len(calls) == 1:
                raise ZeroDivisionError

        staged = work.stage_now("ann")
        decode = arguments.decode

        def pause(encoded: bytes) -> Any:
            decoded.append(encoded)
            if len(decoded) == 1:
                store.forget_everything()
                assert Started(lambda: outbox.run(staged.key)).result() is Outcome.RAN
            return decode(encoded)

        monkeypatch.setattr(arguments, "decode", pause)
        outbox.run(staged.key)
        if protected:
            assert [row.attempts for row in rows()] == [2], "it is still to be run"
            assert runs == [("work", "failed", 2), ("work", "lost", 1)]
            assert points() == (None if transactional else 2)
        else:
            assert rows() == [], "the control: the failed job is gone"

    def test_a_holder_that_died_is_passed_as_soon_as_its_lease_is_over(
        self, outbox: Outbox, service: userlock.LockService, clock: ManualClock
    ) -> None:
        calls = []

        @outbox.job
        def work(user_id: str) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt  # as a process that ends: nothing is noted

        staged = work.stage_now("ann")
        with pytest.raises(KeyboardInterrupt):
            outbox.run(staged.key)
        assert outbox.run(staged.key) is Outcome.RAN
        assert rows() == []

    def test_one_that_had_no_lock_is_passed_later(
        self, outbox: Outbox, store: MemoryStore, clock: ManualClock
    ) -> None:
        calls = []

        @outbox.job
        def work(user_id: str) -> None:
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt

        staged = work.stage_now("ann")
        store.go_down()
        with pytest.raises(KeyboardInterrupt):
            outbox.run(staged.key)
        store.come_back()
        clock.advance(2)
        assert outbox.run(staged.key) is Outcome.NOTHING, "it may still be running"
        clock.advance(900)
        assert outbox.run(staged.key) is Outcome.RAN

    def test_a_job_that_ends_its_process_is_dead_in_the_end(
        self, outbox: Outbox, runs: list[Any]
    ) -> None:
        @outbox.job
        def work(user_id: str) -> None:
            raise KeyboardInterrupt

        staged = work.stage_now("ann")
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                outbox.run(staged.key)
        assert outbox.run(staged.key) is Outcome.RAN
        assert runs == [("work", "dead", 4)]
        assert "process" in outbox.dead.list()[0].cause


class TestRetries:
    def test_by_our_own_clock_then_dead(
        self, outbox: Outbox, mailbox: Mailbox, clock: ManualClock, runs: list[Any]
    ) -> None:
        @outbox.job
        def work(user_id: str) -> None:
            raise ValueError(f"attempt {len(runs)}")

        staged = work.stage_now("ann")
        names, delays = [], []
        for _ in range(6):
            names += [each.name for each in mailbox.messages]
            delays += [each.delay for each in mailbox.messages]
            mailbox.messages.clear()
            outbox.run(staged.key)
            clock.advance(5)
            outbox.run(staged.key)  # early: nothing happens
            clock.advance(100)
        assert runs == [("work", "failed", 1), ("work", "failed", 2), ("work", "dead", 3)]
        assert len(set(names)) == len(names) == 3, "each attempt has a name of its own"
        assert delays == [0, pytest.approx(10), pytest.approx(20)]
        (letter,) = outbox.dead.list()
        assert (letter.attempts, letter.first_error[:21]) == (3, "ValueError: attempt 0")
        assert letter.last_error.startswith("ValueError: attempt 2")
        assert letter.staged_at <= letter.first_error_at < letter.last_error_at == letter.died_at

    def test_never_again(self, outbox: Outbox, mailbox: Mailbox, runs: list[Any]) -> None:
        class BadAddress(Exception):
            pass

        class Worse(BadAddress):
            pass

        @outbox.job(never_retry=[BadAddress])
        def work(user_id: str) -> None:
            raise Worse

        work.stage_now("ann")
        mailbox.deliver_all()
        assert runs == [("work", "dead", 1)]

    def test_tiers(
        self, outbox: Outbox, mailbox: Mailbox, clock: ManualClock, ndb_client: ndb.Client
    ) -> None:
        @outbox.job(retry=Retry(attempts=4, jitter=0, tiers={2: "slow"}))
        def work(user_id: str) -> None:
            raise ValueError

        work.stage_now("ann")
        tiers = []
        for _ in range(3):
            mailbox.deliver_all()
            tiers += [row.tier for row in rows()]
            clock.advance(1000)
            outbox.relay()
        assert tiers == ["", "slow", "slow"]

    def test_a_job_of_another_version_of_the_app_waits(
        self, outbox: Outbox, mailbox: Mailbox, clock: ManualClock
    ) -> None:
        ran = []
        other = Outbox(Mailbox(), clock=clock)
        other.job(name="later")(lambda user_id: None)
        other.jobs["later"].stage_now("ann")
        for _ in range(5):
            mailbox.deliver_all()
            clock.advance(700)
            outbox.relay()
        (row,) = rows()
        assert "later" in row.last_error
        assert row.dead is None
        outbox.job(name="later")(lambda user_id: ran.append(user_id))
        outbox.run(row.key.urlsafe().decode())
        assert ran == ["ann"]


class UnsayableError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error",
    [ValueError("\ud800"), ValueError("a\nb\x1b[2J"), ValueError("x" * 10**6), UnsayableError()],
)
def test_any_error_is_noted(
    outbox: Outbox, mailbox: Mailbox, runs: list[Any], error: Exception
) -> None:
    @outbox.job(never_retry=[Exception])
    def work(user_id: str) -> None:
        raise error

    work.stage_now("ann")
    mailbox.deliver_all()
    assert runs == [("work", "dead", 1)]
    (letter,) = outbox.dead.list()
    assert letter.last_error.isprintable()
    assert len(letter.last_error) < 3_000
