"""The relay: many of them, one lease per shard, fenced; nothing is lost or deleted by it.

Crashes, and commits without a reply: `test_crash_points`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.conftest import EACH_MODE
from tests.contract.outbox.conftest import Box, Died, Mailbox, rows
from userlock.datastore_rpc import Mutation
from userlock.ndb import direct
from userlock.ndb.owners import in_namespace, owner_key, shard_of
from userlock.outbox import EngineError, Outbox, Wake
from userlock.outbox import relay as relay_module
from userlock.outbox.relay import Relay
from userlock.outbox.rows import JobRow, RelayRow
from userlock.outbox.waking import Waker
from userlock_emulator import Emulator


@pytest.fixture
def stage(note: Any, mailbox: Mailbox) -> Callable[[Sequence[str]], None]:
    """Provide a function that stages jobs whose first messages are lost."""

    def stage(owners: Sequence[str]) -> None:
        for owner in owners:
            note.stage_now(owner)
        mailbox.messages.clear()

    return stage


def beside(mailbox: Mailbox, action: Callable[[], object]) -> Mailbox:
    """Let the engine call a function when it is asked next."""

    def act(_: object) -> None:
        mailbox.on_wake = lambda _: None
        action()

    mailbox.on_wake = act
    return mailbox


def test_it_asks_again_later_and_later_and_deletes_nothing(box: Box, stage: Any) -> None:
    stage(["ann"])
    names, asked = [], []
    for number in range(15):
        if box.outbox.relay().woken:
            asked.append(number)
        names += [each.name for each in box.mailbox.messages]
        box.mailbox.messages.clear()
        box.clock.advance(120)
    assert 4 <= len(asked) <= 8
    assert len(set(names)) == len(names)
    assert len(rows()) == 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[0] < gaps[-1]


@pytest.mark.parametrize(
    ("delay", "woken"), [pytest.param(None, 1, id="due"), pytest.param(1, 0, id="delayed")]
)
def test_it_waits_for_no_other_clock(
    box: Box, note: Any, monkeypatch: pytest.MonkeyPatch, delay: float | None, woken: int
) -> None:
    """A job without a delay is due by its commit, though staged by a clock that is ahead."""
    with monkeypatch.context() as ahead:
        right = box.clock.wall()
        ahead.setattr(box.clock, "wall", lambda: right + 3600)
        note.stage_now("ann", delay=delay)
    box.mailbox.messages.clear()
    assert box.outbox.relay().woken == woken


def test_all_shards_and_many_batches(box: Box, note: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "_BATCH", 2)
    for owner in range(4):
        ndb.transaction(lambda owner=owner: [note.stage(f"learner-{owner}", n) for n in range(3)])
    box.mailbox.messages.clear()
    box.outbox.relay(seconds=0)
    assert box.mailbox.messages == [], "it stops at its time"
    relayed = box.outbox.relay()
    assert (relayed.woken, relayed.refused) == (12, 0)
    assert len({each.key for each in box.mailbox.messages}) == 12
    assert box.outbox.relay().woken == 0


def test_long_jobs_that_no_commit_could_carry_together(
    box: Box, note: Any, datastore: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(12):
        note.stage_now("ann", "x" * 890_000)
    assert [box.outbox.relay().woken for _ in range(2)] == [12, 0], "they are pushed back"
    box.clock.advance(1000)
    monkeypatch.setattr(direct, "again", lambda function: function)
    with datastore.faults.abort(1, kind="UserLockJob", skip=1):
        assert box.outbox.relay()[:2] == (8, 4), "contention at the second commit"


@pytest.mark.parametrize("turn", [1, 100], ids=["in turns", "the control"])
@pytest.mark.parametrize("elsewhere", ["another shard", "another namespace"])
def test_one_user_with_many_jobs_does_not_hold_up_others(
    box: Box, note: Any, monkeypatch: pytest.MonkeyPatch, elsewhere: str, turn: int
) -> None:
    """Even if the shard of the many comes first. Without turns all of them would come first."""
    monkeypatch.setattr(relay_module, "_BATCH", 2)
    monkeypatch.setattr(relay_module, "_TURN", turn)
    owners = sorted((f"learner-{number}" for number in range(100)), key=_shard)
    many, few = owners[0], owners[-1]
    of_few = "tenant" if elsewhere == "another namespace" else ""
    ndb.transaction(lambda: [note.stage(many, number) for number in range(12)])
    with in_namespace(of_few):
        note.stage_now(few)
    box.mailbox.messages.clear()

    def in_order(found: Sequence[Any], count: int) -> list[Any]:
        return sorted(found, reverse=not isinstance(found[0], str))  # shards are put in on the left

    monkeypatch.setattr("userlock.outbox.relay.random.sample", in_order)
    assert box.outbox.relay().woken == 13
    place = [ndb.Key(urlsafe=each.key).root().id() for each in box.mailbox.messages].index(
        f"={few}"
    )
    assert place == (2 if turn == 1 else 12)


@pytest.mark.parametrize("share", [4, 1000], ids=["a share", "the control"])
@pytest.mark.parametrize("due", ["at once", "at many times"])
def test_nor_others_of_its_own_shard(
    box: Box, note: Any, monkeypatch: pytest.MonkeyPatch, due: str, share: int
) -> None:
    """Others are asked for after as many batches as a share has; the many in later rounds."""
    monkeypatch.setattr(relay_module, "_BATCH", 2)
    monkeypatch.setattr(relay_module, "_SHARE", share)
    owners = [f"learner-{number}" for number in range(100)]
    many, *others = [each for each in owners if _shard(each) == _shard(owners[0])]
    for number in range(20):
        note.stage_now(many, number, delay=None if due == "at once" else 1 + number)
    note.stage_now(others[-1], delay=None if due == "at once" else 30)
    box.mailbox.messages.clear()
    box.clock.advance(31)
    batches: list[list[str]] = []
    box.mailbox.on_wake = lambda messages: batches.append(
        [ndb.Key(urlsafe=each.key).root().id() for each in messages]
    )
    rounds = [box.outbox.relay().woken]
    of_others = [number for number, each in enumerate(batches) if f"={others[-1]}" in each]
    assert of_others == [2 if share == 4 else 10]
    while sum(rounds) < 21:
        rounds.append(box.outbox.relay().woken)
    assert rounds == ([5, 4, 4, 4, 4] if share == 4 else [21])


def _shard(owner: str) -> int:
    return shard_of(owner_key(owner))


def test_a_tier_whose_engine_is_down_does_not_hold_up_another(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs are due before, and stay due."""
    monkeypatch.setattr(relay_module, "_BATCH", 2)
    down = Mailbox()
    down.down = True
    outbox = Outbox(box.mailbox, clock=box.clock, tiers={"slow": down})

    @outbox.job(tier="slow")
    def slow(user_id: str) -> None:
        pass

    @outbox.job
    def fast(user_id: str) -> None:
        pass

    ndb.transaction(lambda: [slow.stage("ann") for _ in range(6)])
    fast.stage_now("ann")
    box.mailbox.messages.clear()
    for _ in range(2):
        assert outbox.relay().refused == 6
    assert len(box.mailbox.messages) == 1


def test_contention_at_one_job_does_not_hold_up_others(
    box: Box, stage: Any, datastore: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a paused transaction that has read it. Its batch stays due."""
    monkeypatch.setattr(direct, "again", lambda function: function)
    stage([f"learner-{number}" for number in range(20)])
    with datastore.faults.abort(1, kind="UserLockJob"):
        first = box.outbox.relay()
    assert len(box.mailbox.messages) == 20
    assert first.woken + first.refused == 20
    assert box.outbox.relay().woken == first.refused > 0


def test_an_engine_that_takes_a_part_or_none(box: Box, stage: Any) -> None:
    stage(["ann"] * 10)
    wake = box.mailbox.wake

    def wake_some(messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        wake(messages[:4], timeout)
        return [None] * 4 + [EngineError("no")] * (len(messages) - 4)

    box.mailbox.wake = wake_some  # type: ignore[method-assign]
    relayed = box.outbox.relay()
    assert (relayed.woken, relayed.refused) == (4, 6)
    box.mailbox.wake = wake  # type: ignore[method-assign]
    assert box.outbox.relay().woken == 6, "the breaker is for an engine that takes none"
    box.mailbox.down = True
    for _ in range(2):
        box.clock.advance(1000)
        assert box.outbox.relay().refused == 10
    box.mailbox.down = False
    box.clock.advance(60)
    assert box.outbox.relay().woken == 10


@EACH_MODE
@pytest.mark.parametrize("protected", [True, False])
def test_one_that_was_paused_changes_nothing_that_another_has_changed(
    box: Box, stage: Any, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    """It is paused between the engine and its commit; another one takes the shard. The control:
    puts without a fence."""
    monkeypatch.setattr(relay_module, "_BATCH", 1)
    stage(["ann", "ann"])
    pushed_back: list[str] = []

    def other() -> None:
        box.clock.advance(relay_module.LEASE_SECONDS + 1)
        context = ndb.context.get_context()
        with context.new(transaction=None, retry=None).use():
            relayed = Relay("", Waker({"": Mailbox()}, box.clock), box.clock).run_once()
        assert relayed.woken == 2
        pushed_back.extend(row.due for row in rows())

    if not protected:
        for each in (JobRow, RelayRow):
            monkeypatch.setattr(each, "_userlock_always_fenced", False)
        monkeypatch.setattr(direct, "Mutation", lambda base_version, **changed: Mutation(**changed))
    slow = Relay("", Waker({"": beside(box.mailbox, other)}, box.clock), box.clock)
    with userlock.scope(settings=userlock.Settings(fencing=protected)):
        assert (slow.run_once().woken == 0) == protected, "its turn is over"
    assert ([row.due for row in rows()] == pushed_back) == protected


@pytest.mark.parametrize("shared", [False, True])
def test_calls_of_one_outbox_have_leases_of_their_own(
    box: Box, stage: Any, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    """Threads share an outbox, and so do processes that were forked. The control: one relay."""
    if shared:
        relay = box.outbox._new_relay()
        monkeypatch.setattr(box.outbox, "_new_relay", lambda: relay)
    stage(["ann"])
    taken: list[int] = []
    beside(box.mailbox, lambda: taken.append(box.outbox.relay().shards))
    box.outbox.relay()
    assert taken == [1 if shared else 0]
    box.clock.advance(400)
    assert box.outbox.relay().woken == 1, "the lease was given back"


def test_the_lease_of_a_relay_that_died_runs_out(box: Box, stage: Any) -> None:
    stage(["ann"])

    def die() -> None:
        raise Died

    beside(box.mailbox, die)
    with pytest.raises(Died):
        box.outbox.relay()
    assert box.outbox.relay().shards == 0
    box.clock.advance(relay_module.LEASE_SECONDS + 1)
    assert box.outbox.relay().woken == 1


def test_it_runs_on_and_idles(box: Box, stage: Any) -> None:
    stage(["ann"])
    rounds = []
    relay = Relay.run_once

    def counted(self: Relay, **options: Any) -> Any:
        rounds.append(box.clock.now())
        return relay(self, **options)

    ends = box.clock.now() + 120
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Relay, "run_once", counted)
        box.outbox.relay_until(lambda: box.clock.now() > ends)
    assert box.mailbox.messages
    assert 2 < len(rounds) < 120, "it pauses, and looks again"
