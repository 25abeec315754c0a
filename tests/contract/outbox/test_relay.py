"""The relay: many of them, one lease per shard, fenced; nothing is lost or deleted by it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from google.cloud import ndb

import userlock_emulator
from tests.contract.conftest import EACH_MODE
from tests.contract.outbox.conftest import Mailbox, rows
from userlock.ndb.owners import shard_of
from userlock.outbox import EngineError, Outbox, Wake
from userlock.outbox import relay as relay_module
from userlock.outbox.relay import Relay
from userlock.outbox.rows import RelayRow
from userlock.outbox.waking import Waker
from userlock.testing import ManualClock

pytestmark = EACH_MODE


@pytest.fixture
def job(outbox: Outbox) -> Any:
    return outbox.job(name="work")(lambda user_id, *more: None)


def stage(job: Any, mailbox: Mailbox, owners: Sequence[str]) -> None:
    """Stage jobs whose first messages are lost."""
    for owner in owners:
        job.stage_now(owner)
    mailbox.messages.clear()


class Beside(Mailbox):
    """An engine that calls a function while it is asked."""

    def __init__(self, action: Any) -> None:
        super().__init__()
        self.action = action

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        action, self.action = self.action, None
        if action is not None:
            action()
        return super().wake(messages, timeout)


def test_it_asks_again_later_and_later_and_deletes_nothing(
    outbox: Outbox, mailbox: Mailbox, job: Any, clock: ManualClock
) -> None:
    stage(job, mailbox, ["ann"])
    names, asked = [], []
    for minute in range(30):
        if outbox.relay().woken:
            asked.append(minute)
        names += [each.name for each in mailbox.messages]
        mailbox.messages.clear()
        clock.advance(60)
    assert 4 <= len(asked) <= 8
    assert len(set(names)) == len(names)
    assert len(rows()) == 1
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert gaps[0] < gaps[-1]


def test_all_shards_and_many_batches(outbox: Outbox, mailbox: Mailbox, job: Any) -> None:
    owners = [f"learner-{number}" for number in range(60)]
    for owner in owners:
        ndb.transaction(lambda owner=owner: [job.stage(owner, n) for n in range(3)])
    mailbox.messages.clear()
    relayed = outbox.relay()
    assert (relayed.woken, relayed.refused) == (180, 0)
    assert len({each.key for each in mailbox.messages}) == 180
    assert outbox.relay().woken == 0


def test_an_engine_that_is_down_leaves_all_due(
    outbox: Outbox, mailbox: Mailbox, job: Any, clock: ManualClock
) -> None:
    stage(job, mailbox, [f"learner-{number}" for number in range(20)])
    mailbox.down = True
    for _ in range(10):
        assert outbox.relay().woken == 0
        clock.advance(60)
    mailbox.down = False
    assert outbox.relay().woken == 20


def test_an_engine_that_takes_a_part(outbox: Outbox, mailbox: Mailbox, job: Any) -> None:
    stage(job, mailbox, ["ann"] * 10)
    wake = mailbox.wake

    def wake_some(messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        wake(messages[:4], timeout)
        return [None] * 4 + [EngineError("no")] * (len(messages) - 4)

    mailbox.wake = wake_some  # type: ignore[method-assign]
    relayed = outbox.relay()
    assert (relayed.woken, relayed.refused) == (4, 6)
    mailbox.wake = wake  # type: ignore[method-assign]
    assert outbox.relay().woken == 6, "the breaker is for an engine that takes none"


@pytest.mark.parametrize("protected", [True, False])
def test_one_that_lost_its_lease_commits_nothing(
    outbox: Outbox,
    mailbox: Mailbox,
    job: Any,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    protected: bool,
) -> None:
    """It is paused between the engine and its commit; another one takes the shard. The control: a
    batch without the lease row."""
    if not protected:
        monkeypatch.setattr(Relay, "_renew", lambda *_: None)
    stage(job, mailbox, ["ann"])
    before = rows()[0].due

    def other() -> None:
        clock.advance(relay_module.LEASE_SECONDS + 1)
        context = ndb.context.get_context()
        with context.new(transaction=None, retry=None).use():
            assert Relay(Waker({"": Mailbox()}, clock), clock)._take(shard_of(rows()[0].key))

    slow = Relay(Waker({"": Beside(other)}, clock), clock)
    slow.run_once()
    assert (rows()[0].due == before) == protected


def test_two_relays_share_the_shards(
    outbox: Outbox, mailbox: Mailbox, job: Any, clock: ManualClock
) -> None:
    stage(job, mailbox, ["ann"])
    taken: list[Any] = []
    second = Relay(Waker({"": mailbox}, clock), clock)
    first = Relay(Waker({"": Beside(lambda: taken.append(second.run_once()))}, clock), clock)
    assert first.run_once().woken == 1
    assert taken[0].shards == 0
    clock.advance(400)
    assert second.run_once().woken == 1, "the lease was given back"


@pytest.mark.parametrize("shared", [False, True])
def test_calls_of_one_outbox_have_leases_of_their_own(
    outbox: Outbox,
    mailbox: Mailbox,
    job: Any,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,
) -> None:
    """Threads share an outbox, and so do processes that were forked. The control: one relay."""
    if shared:
        relay = outbox._new_relay()
        monkeypatch.setattr(outbox, "_new_relay", lambda: relay)
    stage(job, mailbox, ["ann"])
    wake, taken = mailbox.wake, []

    def wake_beside(messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        mailbox.wake = wake  # type: ignore[method-assign]
        taken.append(outbox.relay().shards)
        return wake(messages, timeout)

    mailbox.wake = wake_beside  # type: ignore[method-assign]
    outbox.relay()
    assert taken == [1 if shared else 0]


def test_the_lease_of_a_relay_that_died_runs_out(
    outbox: Outbox, mailbox: Mailbox, job: Any, clock: ManualClock
) -> None:
    stage(job, mailbox, ["ann"])

    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Relay(Waker({"": Beside(die)}, clock), clock).run_once()
    assert outbox.relay().shards == 0
    clock.advance(relay_module.LEASE_SECONDS + 1)
    assert outbox.relay().woken == 1


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("skip", range(3))
@pytest.mark.parametrize("fault", ["abort", "drop_reply"])
def test_faults_at_each_commit(
    outbox: Outbox,
    mailbox: Mailbox,
    job: Any,
    datastore: userlock_emulator.Emulator,
    fault: str,
    skip: int,
) -> None:
    """Taking the lease, pushing back, giving it back."""
    stage(job, mailbox, ["ann"])
    with getattr(datastore.faults, fault)(rpc="Commit", skip=skip) as planted:
        assert outbox.relay().woken == 1
        assert planted.hits == 1
    (lease,) = RelayRow.query().fetch()
    assert lease.token == ""
    mailbox.deliver_all()
    assert rows() == []


def test_it_stops_at_its_time(
    outbox: Outbox, mailbox: Mailbox, job: Any, clock: ManualClock
) -> None:
    stage(job, mailbox, [f"learner-{number}" for number in range(20)])
    outbox.relay(seconds=0)
    assert mailbox.messages == []


def test_it_runs_on_and_idles(
    outbox: Outbox, mailbox: Mailbox, job: Any, clock: ManualClock
) -> None:
    stage(job, mailbox, ["ann"])
    rounds = []

    def stopped() -> bool:
        rounds.append(clock.now())
        return clock.now() > 1000 + 120

    outbox.relay_until(stopped)
    assert mailbox.messages
    assert clock.now() > 1120
