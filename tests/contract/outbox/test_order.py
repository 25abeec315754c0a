"""The order of an owner's jobs: that of their commits."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.servers import Wire
from tests.contract.outbox.conftest import Box, Mailbox
from userlock.lock.api import global_lock
from userlock.ndb.owners import in_namespace
from userlock.outbox import Outbox, Outcome, Retry, worker
from userlock.outbox.rows import JobRow


@pytest.fixture
def note(box: Box, ran: list[Any]) -> Any:
    return box.outbox.job(name="note")(lambda user_id, number: ran.append(number))


@pytest.fixture
def poison(box: Box) -> Any:
    @box.outbox.job
    def poison(user_id: str) -> None:
        raise ValueError

    return poison


@pytest.mark.parametrize("first", [0, 2, 4])
def test_any_message_runs_the_earlier_ones_first(
    box: Box, note: Any, ran: list[Any], first: int
) -> None:
    for number in range(5):
        note.stage_now("ann", number)
    box.outbox.run(box.mailbox.messages[first].key)
    assert ran == list(range(5)), "and those after it, while it has time"
    box.mailbox.deliver_all()
    assert ran == list(range(5))


@pytest.mark.parametrize("transactional", [False, True])
def test_a_job_is_three_rpcs(
    box: Box, ran: list[Any], ndb_client: ndb.Client, transactional: bool
) -> None:
    """One reads it and the owner's others; claim and removal, or the check and one commit."""
    job = box.outbox.job(name="one", transactional=transactional)(ran.append)
    staged = job.stage_now("ann")
    stub = ndb_client.stub
    wire = Wire(ndb_client)
    try:
        box.outbox.run(staged.key)
    finally:
        ndb_client.stub = stub
    assert ran == ["ann"]
    assert wire.names == ["run_query", "lookup" if transactional else "commit", "commit"]


@pytest.mark.parametrize("namespace", ["", "mine", "tenant"])
def test_a_client_with_a_namespace_of_its_own(
    box: Box, note: Any, ran: list[Any], namespace: str
) -> None:
    """Its owner's jobs are read in the namespace of the job."""
    ndb.get_context().client.namespace = "mine"
    with in_namespace(namespace):
        staged = note.stage_now("ann", 1)
    box.outbox.run(staged.key)
    assert ran == [1]


@pytest.mark.parametrize("control", [False, True])
def test_what_was_read_before_the_lock_is_read_again(
    box: Box, note: Any, ran: list[Any], monkeypatch: pytest.MonkeyPatch, control: bool
) -> None:
    """The first job is put off after the look, and before the lock: the second one is free."""
    first = note.stage_now("ann", 1)
    second = note.stage_now("ann", 2)

    def put_off_first(*args: Any, **options: Any) -> Any:
        row = ndb.Key(urlsafe=first.key.encode()).get()
        row.put_off_until(row.ready_at + 10**9)
        row.put()
        return global_lock(*args, **options)

    monkeypatch.setattr("userlock.outbox.worker.global_lock", put_off_first)
    if control:
        monkeypatch.setattr(worker, "Queue", functools.partial(_outdated, worker.Queue, {}))
    box.outbox.run(second.key)
    assert ran == ([] if control else [2])


def _outdated(make: Any, made: dict[Any, Any], outbox: str, root: Any, rows: Any = None) -> Any:
    """Read the jobs of an owner once."""
    rows = made.setdefault(root, rows)
    return make(outbox, root, rows)


def test_a_message_does_not_run_for_long(box: Box, ran: list[Any]) -> None:
    """An engine's own deadline would end it."""

    @box.outbox.job
    def slow(user_id: str, number: int) -> None:
        box.clock.advance(6)
        ran.append(number)

    for number in range(5):
        slow.stage_now("ann", number)
    box.outbox.run(box.mailbox.messages[0].key)
    assert ran == [0, 1, 2]


def staged_by_clocks_that_disagree(box: Box, note: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stage many jobs, each by a process whose clock is ahead or behind; the worker's is right."""
    right = box.clock.wall()
    wall = [right]
    monkeypatch.setattr(box.clock, "wall", lambda: wall[0])
    for number in range(40):
        wall[0] = right + (-1) ** number * 60.0 * (40 - number)
        note.stage_now("ann", number)
    wall[0] = right
    box.mailbox.messages.reverse()
    box.mailbox.deliver_all()


@pytest.mark.parametrize("counts", ["", "for the order", "for what is due"])
def test_wall_clocks_do_not_count(
    box: Box, note: Any, ran: list[Any], monkeypatch: pytest.MonkeyPatch, counts: str
) -> None:
    """A job without a delay is due by its commit. The controls: they count."""
    if counts == "for the order":
        monkeypatch.setattr(JobRow, "rank", property(lambda row: (row.ready_at, row.index)))
    elif counts:
        monkeypatch.setattr(JobRow, "enqueue", _enqueue_delayed)
    staged_by_clocks_that_disagree(box, note, monkeypatch)
    assert (ran == list(range(40))) is not bool(counts)


def _enqueue_delayed(row: Any) -> None:
    row.queued, row.delayed = row.outbox, True


def test_more_jobs_of_one_transaction_than_are_read_at_once(
    box: Box, note: Any, ran: list[Any]
) -> None:
    ndb.transaction(lambda: [note.stage("ann", number) for number in range(50)])
    box.mailbox.messages[:] = box.mailbox.messages[-1:]
    box.mailbox.deliver_all()
    assert ran == list(range(50))


def test_a_failing_job_holds_up_its_owner_only(
    box: Box, note: Any, poison: Any, ran: list[Any]
) -> None:
    poison.stage_now("ann")
    note.stage_now("ann", 1)
    note.stage_now("bob", 2)
    box.mailbox.deliver_all()
    assert ran == [2]
    for _ in range(4):
        box.later(100)
    assert ran == [2, 1], "dead, it is passed"


@pytest.mark.parametrize("end", ["redrive", "purge", "cancel", "cancel in a task"])
def test_a_dead_job_may_block_until_it_is_redriven_or_removed(
    box: Box, note: Any, ran: list[Any], end: str
) -> None:
    errors = [ValueError()]

    @box.outbox.job(on_dead="block", never_retry=[ValueError])
    def blocks(user_id: str) -> None:
        if errors:
            raise errors.pop()

    key = blocks.stage_now("ann").key
    note.stage_now("ann", 1)
    box.mailbox.deliver_all()
    for _ in range(2):
        box.later(2000)
    assert ran == []
    if end == "redrive":
        assert [done for _, done in box.outbox.dead.redrive_all("")] == [True]
    elif end == "purge":
        assert len(list(box.outbox.dead.purge())) == 1
    elif end == "cancel":
        assert box.outbox.cancel(key)
    else:
        contextvars.Context().run(asyncio.run, _cancel_in_task(box, key))
    box.mailbox.deliver_all()
    assert ran == [1], "without the relay"


async def _cancel_in_task(box: Box, key: str) -> None:
    """The lock is left after the ndb context."""

    def cancel() -> bool:
        with box.outbox.context():
            return box.outbox.cancel(key)

    with userlock.scope(box.service):
        async with global_lock("ann"):
            assert await asyncio.to_thread(cancel)


@pytest.mark.parametrize("head", ["failed", "unknown", "dead"])
def test_messages_of_jobs_that_are_held_up_read_few_rows(
    box: Box, note: Any, ran: list[Any], ndb_client: ndb.Client, head: str
) -> None:
    box.outbox.job(name="failed")(lambda user_id: 1 / 0)
    box.outbox.job(name="dead", on_dead="block", retry=Retry(attempts=1))(lambda user_id: 1 / 0)
    other = Outbox(Mailbox(), clock=box.clock)
    other.job(name=head)(lambda user_id: None).stage_now("ann")
    for number in range(12):
        note.stage_now("ann", number)
    box.outbox.run(box.mailbox.messages[0].key)
    stub = ndb_client.stub
    wire = Wire(ndb_client)
    try:
        outcomes = box.mailbox.deliver_all()
    finally:
        ndb_client.stub = stub
    assert set(outcomes) == {Outcome.NOTHING}
    assert set(wire.names) <= {"run_query", "lookup"}
    assert wire.names.count("run_query") <= 12 + 2, "one of few rows; two for the first job's own"
    assert ran == []


def test_one_message_runs_those_behind_dying_ones(box: Box, note: Any, ran: list[Any]) -> None:
    poison = box.outbox.job(name="poison", retry=Retry(attempts=1))(lambda user_id: 1 / 0)
    for number in range(12):
        poison.stage_now("ann")
        note.stage_now("ann", number)
    box.outbox.run(box.mailbox.messages[0].key)
    assert ran == list(range(12))


def test_a_job_for_later_holds_nobody_up(box: Box, note: Any, ran: list[Any]) -> None:
    note.stage_now("ann", 1, delay=3600)
    note.stage_now("ann", 2)
    box.mailbox.deliver_all()
    assert ran == [2]
    box.later(3601)
    assert ran == [2, 1]


def test_without_order_a_job_neither_waits_nor_holds_up(
    box: Box, note: Any, poison: Any, ran: list[Any]
) -> None:
    @box.outbox.job(ordered=False)
    def free(user_id: str, number: int) -> None:
        ran.append(number)
        if number == 0:
            raise ValueError

    poison.stage_now("ann")
    free.stage_now("ann", 1)
    free.stage_now("bob", 0)
    note.stage_now("bob", 2)
    box.mailbox.deliver_all()
    assert ran == [1, 0, 2]
