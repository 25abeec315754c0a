"""The crash points of a job: commits without a reply, and processes that end.

`tests/chaos` kills processes, and so leaves locks and transactions behind. The engine that is down,
delivers twice, early or out of order: `test_staging`, `test_running`, `test_order`. A stale relay:
`test_relay`. Purge against redrive: `test_dead_letters`.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

from tests.contract.conftest import EACH_MODE
from tests.contract.outbox.conftest import Died, Mailbox, add_point, let_die, points, rows
from userlock.outbox import Outbox, Retry
from userlock.outbox.relay import Relay
from userlock.outbox.waking import Waker
from userlock.outbox.worker import Worker
from userlock.testing import ManualClock
from userlock_emulator import Emulator


class Way:
    """A job's way, step by step.

    Attributes:
        fails: raised by the job; `ends`: whether the process ends in the job.
    """

    def __init__(
        self, outbox: Outbox, mailbox: Mailbox, clock: ManualClock, transactional: bool
    ) -> None:
        self.outbox, self.mailbox, self.clock = outbox, mailbox, clock
        self.fails: type[Exception] | None = None
        self.ends = False
        retry = Retry(attempts=3, first_seconds=10, tiers={1: "slow"})
        options = {"transactional": transactional, "never_retry": [LookupError], "retry": retry}
        self.job = outbox.job(name="work", **options)(self._work)  # type: ignore[call-overload]

    def _work(self, user_id: str) -> None:
        if self.fails is not None:
            raise self.fails
        add_point(user_id)
        if self.ends:
            raise Died

    def stage(self) -> None:
        ndb.transaction(lambda: self.job.stage("ann"))

    def run(self) -> None:
        self.mailbox.deliver_all()

    def fail(self) -> None:
        self.fails = ValueError
        self.run()

    def die(self) -> None:
        """Fail for the last time."""
        self.fails = LookupError
        self.run()

    def relay(self) -> None:
        self.mailbox.messages.clear()
        self.clock.advance(3600)
        self.outbox.relay()

    def redrive(self) -> None:
        self.fails = None
        list(self.outbox.dead.redrive_all("", rate=1000))

    def settle(self) -> None:
        """Let all of it go on, without faults."""
        self.ends, self.fails = False, None
        for _ in range(2):
            self.relay()
            self.run()
            self.redrive()
            self.run()


BEFORE = {
    "stage": [],
    "run": ["stage"],
    "fail": ["stage"],
    "die": ["stage"],
    "relay": ["stage"],
    "redrive": ["stage", "die"],
}
#: The commits of each step: of a transactional job, whose first run needs no claim; of another.
COMMITS = [
    ("stage", 0, True, "staged"),
    ("run", 0, False, "claimed"),
    ("run", 0, True, "run and removed"),
    ("run", 1, False, "removed"),
    ("fail", 0, True, "moved to the next tier"),
    ("fail", 1, False, "moved to the next tier"),
    ("die", 0, True, "moved to the dead"),
    ("die", 1, False, "moved to the dead"),
    ("relay", 0, True, "lease taken"),
    ("relay", 1, True, "pushed back"),
    ("relay", 2, True, "lease given back"),
    ("redrive", 0, True, "revived"),
]
#: Where a process ends: before or after that function.
POINTS = [
    *(("stage", "before", Waker, "wake"), ("stage", "after", Waker, "wake")),
    *(("run", "before", Worker, "_claim"), ("run", "after", Worker, "_claim")),
    *(("run", "in", Worker, "job"),),
    *(("run", "before", Worker, "_remove"), ("run", "after", Worker, "_remove")),
    *(("fail", "before", Worker, "_failed"), ("fail", "before", Waker, "wake")),
    *(("fail", "after", Worker, "_failed"), ("die", "after", Worker, "_failed")),
    *(("relay", "after", Relay, "_take"), ("relay", "before", Relay, "_push_back")),
    *(("relay", "after", Relay, "_push_back"), ("relay", "after", Relay, "_give_back")),
    *(("redrive", "before", Waker, "wake"), ("redrive", "after", Waker, "wake")),
]


@pytest.fixture
def way(
    outbox: Outbox, mailbox: Mailbox, clock: ManualClock, transactional: bool, step: str
) -> Way:
    """Provide a way on which the steps before this one are done."""
    way = Way(outbox, mailbox, clock, transactional)
    for each in BEFORE[step]:
        getattr(way, each)()
    return way


def check(transactional: bool) -> None:
    """It was done: exactly once, if job and removal are one commit."""
    assert rows() == []
    assert points() == 1 if transactional else (points() or 0) >= 1


@EACH_MODE
@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize(
    "fault",
    [
        "drop_reply",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("abort", "unavailable")),
    ],
)
@pytest.mark.parametrize(
    ("step", "number", "transactional"),
    [
        pytest.param(
            step, number, transactional, id=f"{name}-{'once' if transactional else 'again'}"
        )
        for step, number, transactional, name in COMMITS
    ],
)
def test_a_commit_that_fails(
    way: Way, datastore: Emulator, transactional: bool, step: str, number: int, fault: str
) -> None:
    with getattr(datastore.faults, fault)(rpc="Commit", skip=number) as planted:
        getattr(way, step)()
        assert planted.hits == 1
    assert step != "stage" or len(rows()) == len(way.mailbox.messages) == 1
    way.settle()
    check(transactional)


@pytest.mark.parametrize(
    ("step", "when", "owner", "name", "transactional"),
    [
        pytest.param(*each, transactional, id=f"{each[0]}-{each[1]}-{each[3]}-{transactional}")
        for each in POINTS
        for transactional in ((True, False) if each[0] == "run" else (True,))
        # The removal is one commit with the job; a process that ends in it leaves locks behind.
        if not (transactional and each[3] in ("_remove", "job"))
    ],
)
def test_a_process_that_ends(
    way: Way,
    monkeypatch: pytest.MonkeyPatch,
    transactional: bool,
    step: str,
    when: str,
    owner: Any,
    name: str,
) -> None:
    with monkeypatch.context() as patch:
        if when == "in":
            way.ends = True
        else:
            let_die(patch, owner, name, after=when == "after")
        with pytest.raises(Died):
            getattr(way, step)()
    way.settle()
    check(transactional)


@pytest.mark.parametrize(("transactional", "step"), [(True, "stage")])
def test_the_control_without_the_relay_it_is_lost(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        let_die(patch, Waker, "wake")
        with pytest.raises(Died):
            way.stage()
    monkeypatch.setattr(way.outbox, "relay", lambda: None)
    way.settle()
    assert (points(), len(rows())) == (None, 1)
