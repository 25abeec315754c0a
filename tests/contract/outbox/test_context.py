"""Jobs that know themselves, have a time limit, are cancelled, have no owner, are periodic."""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
import types
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb.context import get_context

from tests.contract.conftest import EACH_MODE
from tests.contract.outbox.conftest import Box, Learner
from tests.interpreters import run_python
from userlock.errors import ConfigurationError
from userlock.outbox import Outbox, Outcome, Retry, RetryAfter, context, current_job
from userlock.outbox.rows import PeriodRow, jobs

HOUR = datetime.timedelta(hours=1)


def staged(job: Any, *args: Any, **options: Any) -> Any:
    return ndb.transaction(lambda: job.stage(*args, **options))


# --- what a job knows -----------------------------------------------------------------------------


def test_a_job_knows_itself(box: Box) -> None:
    seen: list[Any] = []

    @box.outbox.job(name="mail")
    def mail(user_id: str) -> None:
        seen.append(current_job())
        if len(seen) == 1:
            raise OSError

    assert current_job() is None
    key = staged(mail, "ann").key
    box.mailbox.deliver_all()
    box.clock.advance(60)
    box.outbox.run(key)
    assert [(each.job_id, each.name, each.owner, each.attempt) for each in seen] == [
        (key, "mail", "ann", 1),
        (key, "mail", "ann", 2),
    ]
    assert current_job() is None


def test_a_job_says_when_it_is_to_run_again(box: Box) -> None:
    @box.outbox.job(name="mail", retry=Retry(attempts=2, first_seconds=10))
    def mail(user_id: str) -> None:
        raise RetryAfter(100, "the provider is busy")

    key = staged(mail, "ann").key
    box.mailbox.deliver_all()
    assert [each.delay for each in box.mailbox.messages] == []
    box.clock.advance(99)
    assert box.outbox.run(key) is Outcome.NOTHING
    box.clock.advance(2)
    assert box.outbox.run(key) is Outcome.RAN
    assert box.runs == [("mail", "failed", 1), ("mail", "dead", 2)]
    (letter,) = box.outbox.dead.list()
    assert letter.last_error.startswith("RetryAfter: the provider is busy")


# --- its end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.05, None], ids=["limited", "the control"])
def test_a_run_that_takes_too_long_ends(box: Box, limit: float | None) -> None:
    @box.outbox.job(name="slow", time_limit=limit, retry=Retry(attempts=1))
    def slow(user_id: str) -> None:
        for _ in range(10**12 if limit else 10**5):
            with contextlib.suppress(Exception):  # no handler of the job's own stops it
                len("")

    staged(slow, "ann")
    box.mailbox.deliver_all()
    assert box.runs == [("slow", "dead" if limit else "done", 1)]
    if limit:
        (letter,) = box.outbox.dead.list()
        assert letter.cause == "slow JobTimeLimit"
        assert "has taken more than 0.05 s" in letter.last_error


def _wait_for_questions(asked: list[int]) -> None:
    while len(asked) < 3:
        pass


@pytest.mark.parametrize(
    ("module", "starting", "waited"),
    [
        ("app", {"a thread": None}, True),
        ("grpc._channel", {}, True),
        ("google.cloud.ndb._eventloop", {}, True),
        ("userlock.waits", {}, False),
        ("app", {}, False),
    ],
    ids=["a thread starts", "in gRPC", "in ndb", "waiting for a lock", "the control"],
)
def test_a_run_is_not_ended_where_it_would_hang(
    module: str, starting: dict[Any, Any], waited: bool, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11 would end a thread that starts; of a call under way, the reply could be lost."""
    in_module = types.FunctionType(_wait_for_questions.__code__, {"__name__": module})
    starts, ask = dict(starting), context._loses_replies

    def loses_replies(thread: int) -> bool:
        asked.append(thread)
        return ask(thread)

    @box.outbox.job(time_limit=0.05, retry=Retry(attempts=1))
    def slow(user_id: str) -> None:
        monkeypatch.setattr(threading, "_limbo", starts)
        in_module(asked)
        after.append(True)
        starts.clear()
        while True:
            len("")

    asked: list[int] = []
    after: list[bool] = []
    monkeypatch.setattr(context, "_loses_replies", loses_replies)
    staged(slow, "ann")
    box.mailbox.deliver_all()
    assert (after == [True]) is waited
    assert box.runs == [("slow", "dead", 1)]


def test_the_transaction_of_a_run_that_takes_too_long_is_rolled_back(box: Box) -> None:
    """Otherwise others wait for its locks for a minute, the note of the failure among them."""

    @box.outbox.job(transactional=True, time_limit=0.05, retry=Retry(attempts=1))
    def slow(user_id: str) -> None:
        Learner.get_by_id(user_id)
        while True:
            len("")

    staged(slow, "ann")
    began = time.monotonic()
    box.mailbox.deliver_all()
    assert box.runs == [("slow", "dead", 1)]
    assert time.monotonic() - began < 10
    (letter,) = box.outbox.dead.list()
    assert __file__ in letter.last_error, "where it was"


#: A job with a time limit, and then what debuggers and profilers do.
_TRACED = """
import sys, threading
from userlock.outbox.context import JobContext, running

with running(JobContext("key", "ann", "mail", 1), 60.0):
    pass
other = threading.Thread(target=len, args=("",))
other.start()
other.join()
seen = []
sys.setprofile(lambda *event: seen.append(event))
(lambda: None)()
sys.setprofile(None)
assert len(seen) > 1
"""


def test_a_time_limit_leaves_nothing_behind_in_the_interpreter() -> None:
    """An error that is taken back slows all threads for good, and Python 3.11 hangs if traced."""
    process = run_python("-c", _TRACED)
    assert process.returncode == 0, process.stderr


def test_a_job_that_exits_ends_itself_only(box: Box) -> None:
    @box.outbox.job(name="leave")
    def leave(user_id: str) -> None:
        raise SystemExit(3)

    staged(leave, "ann")
    box.mailbox.deliver_all()
    assert box.runs == [("leave", "failed", 1)]


# --- cancel ---------------------------------------------------------------------------------------


def test_cancel(box: Box, note: Any, ran: list[Any]) -> None:
    waiting = staged(note, "ann", delay=3_600, dedupe="once").key
    assert box.outbox.cancel(waiting)
    assert not box.outbox.cancel(waiting), "it is gone"
    assert not staged(note, "ann", dedupe="once").duplicate, "its name is free"
    box.mailbox.deliver_all()
    assert ran == [("ann",)]
    with pytest.raises(ValueError, match="no key of a job"):
        box.outbox.cancel("x")


@pytest.mark.parametrize("cached", [True, False])
def test_cancel_again_in_the_same_transaction(outbox: Outbox, note: Any, cached: bool) -> None:
    """A transaction can still read what it deletes, and not what it puts, but from a cache."""
    get_context().set_cache_policy(lambda key: cached)
    waiting = staged(note, "ann", delay=3_600).key

    def change_mind() -> list[bool]:
        own, same = (note.stage("ann", dedupe="once") for _ in range(2))
        assert (same.key, same.duplicate) == (own.key, True)
        return [outbox.cancel(key) for key in (waiting, waiting, own.key, own.key)]

    assert ndb.transaction(change_mind) == [True, False, True, False]
    assert jobs().count() == 0
    assert not staged(note, "ann", dedupe="once").duplicate


def test_a_job_that_replaces_a_cancelled_one(box: Box, note: Any, ran: list[Any]) -> None:
    """Of the same name, in one transaction: which can still read the other one."""
    first = staged(note, "ann", 1, delay=3_600, dedupe="once").key

    def replace() -> Any:
        assert box.outbox.cancel(first)
        return note.stage("ann", 2, dedupe="once")

    assert not ndb.transaction(replace).duplicate
    assert staged(note, "ann", 3, dedupe="once").duplicate
    box.mailbox.deliver_all()
    assert ran == [("ann", 2)]


def test_a_job_that_runs_is_not_cancelled(box: Box) -> None:
    answers = []

    @box.outbox.job(name="mail")
    def mail(user_id: str) -> None:
        running = current_job()
        assert running is not None
        answers.append(box.outbox.cancel(running.job_id))

    staged(mail, "ann")
    box.mailbox.deliver_all()
    assert answers == [False]
    assert jobs().count() == 0


def test_cancel_is_part_of_the_transaction(outbox: Outbox, note: Any) -> None:
    key = staged(note, "ann", delay=3_600).key

    def change_mind() -> None:
        assert outbox.cancel(key)
        raise KeyError

    with pytest.raises(KeyError):
        ndb.transaction(change_mind)
    assert outbox.cancel(key)


# --- jobs of nobody -------------------------------------------------------------------------------


def test_a_job_of_nobody_takes_no_lock_and_waits_for_no_other(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    @box.outbox.job(name="sweep", owner=None)
    def sweep(first: int, *, last: int = 0) -> None:
        running = current_job()
        assert running is not None
        seen.append((first, last, running.owner))
        if first == 1:
            raise OSError

    kept = staged(sweep, 1)
    assert kept.owner is None
    staged(sweep, 2, last=9)
    assert staged(sweep, 3, dedupe="x").duplicate is False
    assert staged(sweep, 4, dedupe="x").duplicate is True
    box.mailbox.deliver_all()
    assert seen == [(1, 0, None), (2, 9, None), (3, 0, None)]
    assert box.service.holder("1") is None
    assert "job sweep of nobody failed" in caplog.text


# --- periodic jobs --------------------------------------------------------------------------------


@EACH_MODE
def test_a_periodic_job_is_staged_once_in_a_period(box: Box) -> None:
    at: list[float] = []

    @box.outbox.job(name="nightly", owner=None, every=HOUR)
    def nightly() -> None:
        at.append(box.clock.wall())

    box.clock.advance(3_600 - box.clock.wall() % 3_600 + 60)
    for _ in range(3):
        box.outbox.relay()
        box.mailbox.deliver_all()
    assert not at, "a new one waits for the next period"
    for hours in (1, 1, 5):
        box.clock.advance(hours * 3_600)
        for _ in range(2):  # two relays
            box.outbox.relay()
            box.mailbox.deliver_all()
    assert len(at) == 3, "late, it is staged once for all that have passed"
    (row,) = PeriodRow.query().fetch()
    assert row.period == box.clock.wall() // 3_600 * 3_600 * 1e6


@pytest.mark.parametrize(("before", "after"), [(3_600, 86_400), (86_400, 3_600)])
def test_the_next_version_of_the_app_has_other_periods(
    box: Box, ndb_client: ndb.Client, ran: list[Any], before: int, after: int
) -> None:
    def relay(every: int, hours: int) -> list[Any]:
        version = Outbox(box.mailbox, client=ndb_client, clock=box.clock)
        version.job(name="report", owner=None, every=every)(lambda: ran.append(None))
        ran.clear()
        for _ in range(hours):
            version.relay()
            box.mailbox.deliver_all()
            box.clock.advance(3_600)
        return ran

    box.clock.advance(86_400 - box.clock.wall() % 86_400 + 10 * 3_600)
    relay(before, 30)
    assert len(relay(after, 48)) == 48 * 3_600 // after


@pytest.mark.parametrize("function", [lambda user_id: None, lambda: None], ids=["user_id", ""])
def test_a_periodic_job_has_no_owner_and_no_arguments(outbox: Outbox, function: Any) -> None:
    with pytest.raises(ConfigurationError, match="give owner=None, and let it take none"):
        outbox.job(name="x", every=HOUR)(function)
