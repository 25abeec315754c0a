"""Running: under the owner's lock, claimed and removed by compare-and-swap, correct without it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core.exceptions import Aborted
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.outbox.conftest import (
    Box,
    Died,
    Learner,
    Mailbox,
    add_point,
    points,
    rows,
)
from tests.unit.emulator.waiting import Started
from userlock.ndb import direct, provenance
from userlock.outbox import Outbox, Outcome, Retry
from userlock.outbox import worker as worker_module
from userlock.outbox.rows import decoded
from userlock.outbox.worker import Worker
from userlock.testing import allow_unlocked
from userlock_emulator import Emulator

Fails = Callable[[int], BaseException | None]


@pytest.fixture
def calls() -> list[str]:
    return []


def adding(box: Box, calls: list[str], fails: Fails = lambda call: None, **options: Any) -> Any:
    """Return a job that adds a point, and raises what a function of its calls so far says."""

    @box.outbox.job(name="work", **options)
    def work(user_id: str) -> None:
        calls.append(user_id)
        add_point(user_id)
        if error := fails(len(calls)):
            raise error

    return work


def died_first(call: int) -> BaseException | None:
    return Died() if call == 1 else None


def failed_first(call: int) -> BaseException | None:
    return ZeroDivisionError() if call == 1 else None


# --- under the lock -----------------------------------------------------------------------------


def test_it_holds_its_owners_lock(box: Box) -> None:
    seen = []

    @box.outbox.job
    def work(user_id: str) -> None:
        holder = box.service.holder("ann")
        assert holder is not None
        seen.append((holder.priority, holder.request.rpartition(" ")[0]))
        add_point(user_id)

    staged = work.stage_now("ann")
    assert box.mailbox.deliver_all() == [Outcome.RAN]
    assert seen == [("batch", "job")]
    assert points() == 1
    assert box.service.holder("ann") is None
    assert box.outbox.run(staged.key) is Outcome.NOTHING, "a second message"


def test_a_busy_owner_costs_no_attempt(box: Box, calls: list[str]) -> None:
    staged = adding(box, calls).stage_now("ann")
    box.mailbox.messages.clear()
    lease = box.service.acquire("ann")
    for _ in range(5):
        assert box.outbox.run(staged.key) is Outcome.BUSY
    box.service.release(lease)
    assert [row.attempts for row in rows()] == [0]
    assert len({each.name for each in box.mailbox.messages}) == 5, "no engine drops them"
    assert all(each.delay > 0 for each in box.mailbox.messages)
    assert box.outbox.run(staged.key) is Outcome.RAN
    assert box.runs == [("work", "done", 1)]


def test_messages_for_a_busy_owner_come_more_and_more_seldom_and_wait_once(
    box: Box, calls: list[str]
) -> None:
    staged = adding(box, calls).stage_now("ann")
    lease = box.service.acquire("ann", lock_timeout=86_400)
    box.mailbox.messages.clear()
    waits, pauses = [], []
    for _ in range(12):
        before = box.clock.now()
        box.outbox.run(staged.key)
        waits.append(box.clock.now() - before)
        pauses.append(box.mailbox.messages.pop().delay)
        box.clock.advance(100)
    assert waits[0] >= 2
    assert max(waits[1:]) < 0.1
    assert pauses[0] <= 5
    assert 30 <= pauses[-1] <= 60
    box.service.release(lease)


def test_a_job_that_is_gone_after_the_wait_is_not_asked_for_again(
    box: Box, calls: list[str]
) -> None:
    staged = adding(box, calls).stage_now("ann")
    lease = box.service.acquire("ann")
    box.mailbox.messages.clear()
    box.clock.after(1, lambda: ndb.transaction(rows()[0].key.delete))
    assert box.outbox.run(staged.key) is Outcome.BUSY
    assert box.mailbox.messages == []
    box.service.release(lease)


def test_a_job_that_runs_is_left_to_the_relay(box: Box) -> None:
    outcomes = []

    @box.outbox.job
    def slow(user_id: str) -> None:
        box.mailbox.messages.clear()
        for _ in range(5):
            box.clock.advance(1)
            outcomes.append(Started(lambda: box.outbox.run(staged.key)).result())
        assert box.mailbox.messages == [], "no message for what is running"

    staged = slow.stage_now("ann")
    assert box.outbox.run(staged.key) is Outcome.RAN
    assert set(outcomes) == {Outcome.BUSY}
    assert rows() == []


@EACH_MODE
def test_a_lost_update_of_a_put_under_way_is_a_failure_and_runs_again(box: Box) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann", points=1).put()

    @box.outbox.job
    def work(user_id: str) -> None:
        learner = Learner.get_by_id(user_id, use_cache=False)
        if learner.points == 1:
            with allow_unlocked("another process"):
                other = Learner.get_by_id(user_id, use_cache=False)
                other.points += 10
                other.put()
        learner.points += 1
        learner.put_async()  # it is waited for

    work.stage_now("ann")
    box.mailbox.deliver_all()
    box.later()
    assert box.runs == [("work", "failed", 1), ("work", "done", 2)]
    assert points() == 12


def test_a_lost_update_of_a_failed_job_is_not_the_next_ones(box: Box) -> None:
    """One run of the owner's jobs runs both."""
    with userlock.global_lock("ann"):
        Learner(id="ann", points=1).put()

    @box.outbox.job(name="fail", never_retry=[ZeroDivisionError])
    def fail(user_id: str) -> None:
        learner = Learner.get_by_id(user_id)
        contextvars.Context().run(another_request)
        learner.put_async()
        raise ZeroDivisionError

    def another_request() -> None:
        with box.outbox.context(), allow_unlocked("another process"):
            add_point("ann")

    fail.stage_now("ann")
    work = adding(box, [])
    box.outbox.run(work.stage_now("ann").key)
    assert box.runs == [("fail", "dead", 1), ("work", "done", 1)]
    assert points() == 3


@pytest.mark.parametrize("error", [Aborted("a conflict"), ValueError()])
def test_each_run_has_the_arguments_that_were_staged(box: Box, error: Exception) -> None:
    """Also one in the same attempt, after a conflict."""
    seen: list[Any] = []

    @box.outbox.job(name="work", transactional=True)
    def work(user_id: str, bill: dict[str, int], *, notes: list[str]) -> None:
        bill["cents"] += 10
        notes.append("a fee")
        seen.append([bill, notes])
        if len(seen) == 1:
            raise error

    work.stage_now("ann", {"cents": 100}, notes=[])
    box.later()
    box.later()
    assert seen == [[{"cents": 110}, ["a fee"]]] * 2


@pytest.mark.parametrize("transactional", [True, False])
def test_a_job_runs_in_the_namespace_that_staged_it(
    box: Box, calls: list[str], transactional: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "userlock")
    work = adding(box, calls, transactional=transactional)
    tenant = ndb.context.get_context().new(namespace="tenant")
    with tenant.use():
        work.stage_now("ann")
    box.mailbox.messages.clear()
    assert box.outbox.relay().woken == 1, "the relay looks at all namespaces"
    box.mailbox.deliver_all()
    assert points() is None
    with tenant.use():
        assert points() == 1
    assert rows() == []
    assert "of 'ann' in tenant done" in caplog.text


# --- the claim ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_a_job_that_was_done_before_the_lock_is_not_reported_as_lost(
    box: Box, calls: list[str], monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    """Two messages ask for it; one of them reads its row, and the other runs it."""
    staged = adding(box, calls, transactional=True, ordered=ordered).stage_now("ann")
    take = userlock.global_lock

    def late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(worker_module, "global_lock", take)
        assert Started(lambda: box.outbox.run(staged.key)).result() is Outcome.RAN
        return take(*args, **options)

    monkeypatch.setattr(worker_module, "global_lock", late)
    box.outbox.run(staged.key)
    assert (points(), box.runs) == (1, [("work", "done", 1)])


@pytest.mark.parametrize("protected", [True, False])
def test_without_the_lock_one_worker_claims_it(
    box: Box, protected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have a degraded lock. The control: a claim that does not compare."""
    if not protected:
        monkeypatch.setattr(worker_module, "_is_claimed", lambda *_, **__: False)
    inside = []
    begun, go_on = threading.Event(), threading.Event()

    @box.outbox.job
    def work(user_id: str) -> None:
        inside.append(user_id)
        if not begun.is_set():
            begun.set()
            assert go_on.wait(10)

    staged = work.stage_now("ann")
    box.store.go_down()
    first = Started(lambda: box.outbox.run(staged.key))
    try:
        assert begun.wait(10)
        second = box.outbox.run(staged.key)
    finally:
        go_on.set()
    assert first.result() is Outcome.RAN
    assert (second, len(inside)) == ((Outcome.NOTHING, 1) if protected else (Outcome.RAN, 2))


@pytest.mark.parametrize("most_seen", [10_000, 1])
@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("transactional", [True, False])
def test_a_worker_that_was_passed_finishes_nothing(
    box: Box,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    transactional: bool,
    protected: bool,
    most_seen: int,
) -> None:
    """It is paused for longer than its lease before it runs the job; another one runs it
    meanwhile, fails, and is to run it again. The control: no comparison of the claims.

    The job may read so many entities that the version of its row is forgotten.
    """
    monkeypatch.setattr(provenance, "MOST_SEEN", most_seen)
    if not protected:
        monkeypatch.setattr(worker_module, "_is_mine", lambda *_: True)
    staged = adding(box, calls, failed_first, transactional=transactional).stage_now("ann")
    seen: list[bytes] = []

    def pause(encoded: bytes) -> Any:
        seen.append(encoded)
        if len(seen) == 1:
            box.store.forget_everything()
            assert Started(lambda: box.outbox.run(staged.key)).result() is Outcome.RAN
        return decoded(encoded)

    monkeypatch.setattr(worker_module, "decoded", pause)
    box.outbox.run(staged.key)
    if protected:
        # The first run of a job with a transaction is counted when it has failed.
        attempts = 1 if transactional else 2
        assert [row.attempts for row in rows()] == [attempts], "it is still to be run"
        assert box.runs == [("work", "failed", attempts), ("work", "lost", 1)]
        assert points() == (None if transactional else 2)
    else:
        assert rows() == [], "the control: the failed job is gone"


def test_a_transactional_job_that_ends_its_process_is_counted(
    box: Box, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the second run on, each is counted before it begins: it ends with a dead letter.

    It ends before its transaction, whose locks would stay in this process.
    """

    def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr(Worker, "_run_once", die)
    staged = adding(box, calls, transactional=True, retry=Retry(attempts=3)).stage_now("ann")
    attempts = []
    for _ in range(5):
        with contextlib.suppress(Died):
            box.outbox.run(staged.key)
        attempts += [row.attempts for row in rows() if row.dead is None]
        box.clock.advance(3600)
        box.store.forget_everything()
        box.outbox.relay()
    assert attempts == [0, 1, 2, 3]
    assert [row.cause for row in rows()] == ["work the process ended"]
    assert calls == []


@pytest.mark.parametrize("degraded", [False, True])
def test_a_holder_that_died_is_passed(box: Box, calls: list[str], degraded: bool) -> None:
    """As soon as its lease is over; later, if it had none."""
    staged = adding(box, calls, died_first).stage_now("ann")
    if degraded:
        box.store.go_down()
    with pytest.raises(Died):
        box.outbox.run(staged.key)
    if degraded:
        box.store.come_back()
        box.clock.advance(2)
        assert box.outbox.run(staged.key) is Outcome.NOTHING, "it may still be running"
        box.clock.advance(900)
    assert box.outbox.run(staged.key) is Outcome.RAN
    assert rows() == []


def test_a_job_that_ends_its_process_is_dead_in_the_end(box: Box, calls: list[str]) -> None:
    staged = adding(box, calls, lambda call: Died()).stage_now("ann")
    for _ in range(3):
        with pytest.raises(Died):
            box.outbox.run(staged.key)
    assert box.outbox.run(staged.key) is Outcome.RAN
    assert box.runs == [("work", "dead", 4)]
    assert "process" in box.outbox.dead.list()[0].cause


# --- failures -----------------------------------------------------------------------------------


def test_retries_by_our_own_clock_then_dead(box: Box, calls: list[str]) -> None:
    staged = adding(box, calls, lambda call: ValueError(f"attempt {call}")).stage_now("ann")
    names, delays = [], []
    for _ in range(6):
        names += [each.name for each in box.mailbox.messages]
        delays += [each.delay for each in box.mailbox.messages]
        box.mailbox.messages.clear()
        box.outbox.run(staged.key)
        box.clock.advance(5)
        box.outbox.run(staged.key)  # early: nothing happens
        box.clock.advance(100)
    assert box.runs == [("work", "failed", 1), ("work", "failed", 2), ("work", "dead", 3)]
    assert len(set(names)) == len(names) == 3, "each attempt has a name of its own"
    assert delays == [0, pytest.approx(10), pytest.approx(20)]
    (letter,) = box.outbox.dead.list()
    assert (letter.attempts, letter.first_error[:21]) == (3, "ValueError: attempt 1")
    assert letter.last_error.startswith("ValueError: attempt 3")
    assert letter.staged_at <= letter.first_error_at < letter.last_error_at == letter.died_at


def test_tiers(box: Box, calls: list[str]) -> None:
    retry = Retry(attempts=4, jitter=0, tiers={2: "slow"})
    adding(box, calls, lambda call: ValueError(), retry=retry).stage_now("ann")
    tiers = []
    for _ in range(3):
        box.mailbox.deliver_all()
        tiers += [row.tier for row in rows()]
        box.clock.advance(1000)
        box.outbox.relay()
    assert tiers == ["", "slow", "slow"]


def test_a_job_of_another_version_of_the_app_waits(box: Box) -> None:
    ran: list[str] = []
    other = Outbox(Mailbox(), clock=box.clock)
    other.job(name="later")(lambda user_id: None)
    other.jobs["later"].stage_now("ann")
    for _ in range(3):
        box.later(700)
    (row,) = rows()
    assert "later" in row.last_error
    assert (row.dead, row.attempts) == (None, 0)
    box.outbox.job(name="later")(lambda user_id: ran.append(user_id))
    box.later(700)
    assert ran == ["ann"]


def test_one_that_has_failed_for_days_waits_for_a_worker_that_knows_it_too(box: Box) -> None:
    other = Outbox(Mailbox(), clock=box.clock)
    retry = Retry(attempts=1000, first_seconds=86_400, most_seconds=86_400)
    staged = other.job(name="later", retry=retry)(lambda user_id: 1 / 0).stage_now("ann")
    for by in (other, other, other, other, box.outbox):
        by.run(staged.key)
        box.clock.advance(86_400)
    (row,) = rows()
    assert ("UnknownJob" in row.last_error, row.dead, row.attempts) == (True, None, 4)


class UnsayableError(Exception):
    """An error without a text."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        *(ValueError("\ud800"), ValueError("a\nb\x1b[2J"), ValueError("x" * 10**6)),
        *(UnsayableError(), asyncio.CancelledError()),
    ],
)
def test_any_error_is_noted_and_rolls_a_transactional_job_back(
    box: Box, calls: list[str], error: BaseException, transactional: bool
) -> None:
    """At once for the last time, for `never_retry` and what is derived from it."""
    options: dict[str, Any] = {"never_retry": [Exception], "transactional": transactional}
    adding(box, calls, lambda call: error, **options).stage_now("ann")
    box.mailbox.deliver_all()
    assert box.runs == [("work", "dead", 1)]
    assert points() == (None if transactional else 1)
    (letter,) = box.outbox.dead.list()
    assert letter.last_error.isprintable()
    assert len(letter.last_error) < 3_000


@pytest.mark.parametrize("transactional", [False, True])
def test_a_tasklet_is_run_to_its_end_before_the_lock_is_left(box: Box, transactional: bool) -> None:
    @box.outbox.job(name="work", transactional=transactional)
    @ndb.tasklet
    def work(user_id: str) -> Any:
        learner = (yield Learner.get_by_id_async(user_id)) or Learner(id=user_id)
        learner.points += 1
        yield learner.put_async()

    work.stage_now("ann")
    box.mailbox.deliver_all()
    assert (box.runs, points(), rows()) == ([("work", "done", 1)], 1, [])


@pytest.mark.parametrize("transactional", [False, True])
def test_a_context_that_swallows_an_error_ends_no_job(
    box: Box, calls: list[str], transactional: bool
) -> None:
    box.outbox.within(lambda: contextlib.suppress(ZeroDivisionError))
    adding(box, calls, failed_first, transactional=transactional).stage_now("ann")
    box.mailbox.deliver_all()
    assert "Outbox.within has swallowed" in rows()[0].last_error
    box.later()
    assert box.runs == [("work", "failed", 1), ("work", "done", 2)]
    assert points() == (1 if transactional else 2)


def test_a_tasklet_whose_own_task_is_cancelled_has_failed(box: Box) -> None:
    @box.outbox.job(name="work")
    @ndb.tasklet
    def work(user_id: str) -> Any:
        yield Learner.get_by_id_async(user_id)
        raise asyncio.CancelledError

    work.stage_now("ann")
    box.mailbox.deliver_all()
    assert box.runs == [("work", "failed", 1)]


def test_a_job_that_returns_what_nobody_runs_has_failed(box: Box) -> None:
    async def later(user_id: str) -> None: ...

    makers: list[Any] = [later, lambda user_id: (each for each in user_id)]
    for number, make in enumerate(makers):
        function: Any = lambda user_id, make=make: make(user_id)  # noqa: E731
        job: Any = box.outbox.job(name=f"work-{number}")(function)
        job.stage_now("ann")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            box.later()
        assert box.runs[-1] == (job.name, "failed", 1)
        box.outbox.cancel(rows()[0].key.urlsafe().decode())


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("protected", [True, False], ids=["insists", "the control"])
@pytest.mark.parametrize("outcome", ["done", "failed"])
def test_others_that_write_to_the_row_when_a_run_ends(
    box: Box, datastore: Emulator, monkeypatch: pytest.MonkeyPatch, outcome: str, protected: bool
) -> None:
    """Without the lock nobody else ends the claim, which would stand for a quarter of an hour."""
    if not protected:
        monkeypatch.setattr(Worker, "_insist", lambda _, write, claim: write(claim.row))
        monkeypatch.setattr(direct, "again", lambda asked: asked)

    @box.outbox.job(name="work")
    def work(user_id: str) -> None:
        datastore.faults.abort(12, kind="UserLockJob")
        if outcome == "failed":
            raise ValueError

    box.store.go_down()
    key = work.stage_now("ann").key
    if not protected:
        with pytest.raises(Aborted):
            box.outbox.run(key)
        (row,) = rows()
        assert row.claimed_until > box.clock.wall() * 1e6
        return
    assert box.outbox.run(key) is Outcome.RAN
    assert [row.claim for row in rows()] == ([""] if outcome == "failed" else [])
