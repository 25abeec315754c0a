"""An outbox for operators: on the emulator, with an engine that only takes messages."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient
from google.cloud import ndb

import userlock
from tests.contract.outbox.conftest import Mailbox
from tests.unit.cli.terminal import Terminal
from userlock.contrib.flask import UserLock
from userlock.contrib.inspector import Inspector
from userlock.outbox import Outbox, Retry
from userlock.outbox.rows import JobRow, encoded, new_key
from userlock.stores import MemoryStore
from userlock.testing import ManualClock


class Shop:
    """An app with an outbox.

    Attributes:
        error: raised by its jobs, if there is one.
        ran: the calls, in their order.
        web: an operator's browser, with the inspector.
    """

    def __init__(self, client: Any, service: userlock.LockService, clock: ManualClock) -> None:
        self.client, self.service, self.clock = client, service, clock
        self.engine = Mailbox()
        self.outbox = Outbox(self.engine, client=client, service=service, clock=clock)
        self.error: Exception | None = None
        self.ran: list[tuple[Any, ...]] = []
        once = Retry(attempts=1)
        twice = Retry(attempts=2, first_seconds=10, jitter=0)
        self.pay = self.outbox.job(name="pay", retry=once)(self._work)
        self.payback = self.outbox.job(name="payback", retry=once)(self._work)
        self.close_books = self.outbox.job(name="close_books", retry=once, on_dead="block")(
            self._work
        )
        self.mail = self.outbox.job(name="mail", retry=twice)(self._work)

    @functools.cached_property
    def web(self) -> FlaskClient:
        app = flask.Flask(__name__)
        inspector = Inspector(lambda request: "olga", outbox=self.outbox)
        UserLock(app, client=self.client, service=self.service, inspector=inspector)
        return app.test_client()

    def _work(self, user_id: str, *args: Any) -> None:
        self.ran.append((user_id, *args))
        if self.error is not None:
            raise self.error

    def stage(self, job: Any, *args: Any, **options: Any) -> str:
        """Stage a job; return its key."""
        with self.outbox.context():
            key: str = job.stage_now(*args, **options).key
            return key

    def kill(self, job: Any, *args: Any, error: Exception | None = None) -> str:
        """Stage a job, and let it die; return its key. Jobs that waited run as well."""
        key = self.stage(job, *args)
        before, self.error = self.error, error or RuntimeError("no")
        self.deliver()
        self.error = before
        return key

    def deliver(self) -> None:
        """Deliver the messages, but not those that come meanwhile."""
        messages, self.engine.messages = self.engine.messages, []
        for each in messages:
            self.engine.deliver(each.key)

    def rows(self) -> list[Any]:
        with self.outbox.context():
            return list(JobRow.query().fetch(use_cache=False, use_global_cache=False))

    def row(self, key: str) -> Any:
        with self.outbox.context():
            return ndb.Key(urlsafe=key.encode()).get(use_cache=False, use_global_cache=False)

    def put_dead(self, owners: Sequence[str], *, job: str = "pay", cause: str = "") -> None:
        """Store a dead job of each owner, without running it."""
        with self.outbox.context():
            put_dead(owners, job, cause, self.clock.wall())


def put_dead(owners: Sequence[str], job: str, cause: str, at: float) -> None:
    """Store dead jobs in the current ndb context."""
    now = round(at * 1e6)
    for owner in owners:
        row = JobRow(key=new_key(owner, now), owner=owner, job=job, ready_at=now, staged_at=now)
        row.arguments, row.attempts = encoded(job, (owner,), {}), 1
        row.die(cause or f"{job} RuntimeError", now)
        ndb.transaction(row.put)


@pytest.fixture
def service(store: MemoryStore, clock: ManualClock) -> userlock.LockService:
    return userlock.LockService(store, clock=clock)


@pytest.fixture
def shop(
    ndb_client: ndb.Client,
    service: userlock.LockService,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> Shop:
    """Provide an app, as the module `shop`."""
    shop = Shop(ndb_client, service, clock)
    monkeypatch.setitem(sys.modules, "shop", SimpleNamespace(outbox=shop.outbox))
    return shop


@pytest.fixture
def terminal(store: MemoryStore, clock: ManualClock, shop: Shop) -> Terminal:
    """Provide a command line that names the app."""
    terminal = Terminal(store, clock)
    terminal.environ["USERLOCK_OUTBOX"] = "shop:outbox"
    return terminal
