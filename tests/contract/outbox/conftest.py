"""An outbox on the emulator. Its engine keeps messages until a test delivers them; time by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from google.cloud import ndb

import userlock
from userlock.events import LISTENERS, JobRan
from userlock.ndb import capabilities
from userlock.outbox import EngineError, Outbox, Retry, Wake
from userlock.outbox.rows import JobRow
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


class Learner(userlock.UserModel):
    """Written by jobs, under the owner's lock."""

    _lock_id_from_key = userlock.key_id
    points = ndb.IntegerProperty(default=0)
    log = ndb.TextProperty(repeated=True)


class Mailbox:
    """An engine that keeps its messages.

    Attributes:
        messages: not delivered yet.
        down: whether it refuses all.
        asked: how often it was asked, and with which time-outs.
        on_wake: called with the messages, first of all.
    """

    def __init__(self) -> None:
        self.messages: list[Wake] = []
        self.down = False
        self.asked: list[float] = []
        self.deliver: Callable[[str], object] = lambda key: None
        self.on_wake: Callable[[Sequence[Wake]], object] = lambda messages: None

    def connect(self, deliver: Callable[[str], object]) -> None:
        self.deliver = deliver

    def wake(self, messages: Sequence[Wake], timeout: float) -> list[EngineError | None]:
        self.asked.append(timeout)
        self.on_wake(messages)
        if self.down:
            return [EngineError("it is down")] * len(messages)
        self.messages += messages
        return [None] * len(messages)

    def close(self) -> None:
        pass

    def deliver_all(self) -> list[Any]:
        """Deliver all messages, those that come meanwhile too; return the outcomes."""
        outcomes = []
        while self.messages:
            outcomes.append(self.deliver(self.messages.pop(0).key))
        return outcomes


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def outbox(
    ndb_client: ndb.Client, mailbox: Mailbox, clock: ManualClock, service: userlock.LockService
) -> Iterator[Outbox]:
    """Provide an outbox inside an ndb context."""
    outbox = Outbox(
        mailbox,
        client=ndb_client,
        clock=clock,
        retry=Retry(attempts=3, first_seconds=10, jitter=0),
        tiers={"slow": mailbox},
    )
    with ndb_client.context():
        capabilities.honours_base_version(ndb_client)
        yield outbox
    outbox.close()


@pytest.fixture
def runs() -> Iterator[list[tuple[str, str, int]]]:
    """Collect the runs: job, outcome, attempt."""
    seen: list[tuple[str, str, int]] = []

    def listener(event: Any) -> None:
        if isinstance(event, JobRan):
            seen.append((event.job.rpartition(".")[2], event.outcome, event.attempt))

    LISTENERS.add(listener)
    yield seen
    LISTENERS.remove(listener)


@pytest.fixture
def ran() -> list[Any]:
    """Provide the calls of `note`."""
    return []


@pytest.fixture
def note(outbox: Outbox, ran: list[Any]) -> Any:
    """Provide a job that notes its arguments after the owner."""

    @outbox.job
    def note(user_id: str | int, *facts: Any, **more: Any) -> None:
        ran.append((user_id, *facts, *more.items()))

    return note


class Box(NamedTuple):
    """An outbox and all around it.

    Attributes:
        runs: job, outcome and attempt of each.
    """

    outbox: Outbox
    mailbox: Mailbox
    clock: ManualClock
    service: userlock.LockService
    store: MemoryStore
    runs: list[tuple[str, str, int]]

    def later(self, seconds: float = 1000) -> None:
        """Let time pass, and run what is due then."""
        self.clock.advance(seconds)
        self.outbox.relay()
        self.mailbox.deliver_all()


@pytest.fixture
def box(
    outbox: Outbox,
    mailbox: Mailbox,
    clock: ManualClock,
    service: userlock.LockService,
    store: MemoryStore,
    runs: list[tuple[str, str, int]],
) -> Box:
    return Box(outbox, mailbox, clock, service, store, runs)


class Died(BaseException):
    """The process ends here: nothing more is noted."""


def let_die(
    patch: pytest.MonkeyPatch, owner: Any, name: str, *, call: int = 1, after: bool = False
) -> None:
    """Let the process end in one call of a function: before it, or after it."""
    function, calls = getattr(owner, name), itertools.count(1)

    def dying(*args: Any, **kwargs: Any) -> Any:
        ends = next(calls) == call
        if ends and not after:
            raise Died
        result = function(*args, **kwargs)
        if ends:
            raise Died
        return result

    is_static = isinstance(vars(owner)[name], staticmethod)
    patch.setattr(owner, name, staticmethod(dying) if is_static else dying)


def rows() -> list[Any]:
    """Return all jobs that are stored."""
    return list(JobRow.query(namespace="").fetch(use_cache=False))


def points(name: str = "ann") -> int | None:
    learner = Learner.get_by_id(name, use_cache=False)
    return None if learner is None else learner.points


def add_point(name: str) -> None:
    """Get, modify, put; under the lock that the job has."""
    learner = Learner.get_by_id(name) or Learner(id=name)
    learner.points += 1
    learner.put()
