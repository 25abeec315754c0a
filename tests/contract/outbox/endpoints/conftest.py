"""A site with the outbox's endpoints, in each integration, and an issuer of tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.outbox.endpoints import issuer as issuers
from tests.contract.outbox.endpoints.issuer import Issuer
from tests.contract.web.sites import Answer
from tests.contract.web.sites import site as site_of
from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.outbox import Outbox
from userlock.outbox.authentication import Caller
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

SECRET = "correct-horse-battery-staple"
AUTHORIZED = {"Authorization": f"Bearer {SECRET}"}
JOBS, RELAY = "/userlock/jobs", "/userlock/relay"
#: The answer of the app itself.
APP = "the app's"


#: Sends a request: method, path, headers, body; further options are of the WSGI environment.
Call = Callable[..., Answer]


class Anybody:
    """Lets everybody in: the negative control."""

    def check(self, header: Callable[[str], str | None]) -> None:
        pass


class Shop:
    """An outbox with a job that notes its runs."""

    def __init__(self, client: ndb.Client, service: userlock.LockService, name: str = "") -> None:
        self.client = client
        self.service = service
        self.outbox = Outbox("inline://?threads=0", name=name)
        self.ran: list[str] = []
        self.outbox.job(name="note")(self.note)

    def note(self, user_id: str) -> None:
        self.ran.append(f"{user_id} {priority()}")

    def stage(self, user_id: str = "ann", job: str = "note") -> bytes:
        with self.client.context():
            return self.outbox.jobs[job].stage_now(user_id).key.encode()

    def options(self, *callers: Caller) -> dict[str, Any]:
        endpoints = OutboxEndpoints(self.outbox, callers=callers)
        return {"client": self.client, "service": self.service, "outbox": endpoints}


def priority() -> str:
    scope = userlock.current_scope()
    assert scope is not None
    return f"{scope.priority.value} {scope.batch_work}"


@contextmanager
def open_site(kind: str, **options: Any) -> Iterator[Call]:
    """Open a site of one integration. Its app answers all addresses, before it looks at routes."""

    def view(path: str) -> str:
        return priority() if path == "/priority" else APP

    with site_of(kind, view, **options) as ask:
        yield lambda method, path, headers=None, body=b"", **environ: ask(
            path, headers, method=method, body=body, **environ
        )


#: `make test` tries Flask, `make test-all` the others as well.
_SITES = ["flask", *(pytest.param(each, marks=pytest.mark.slow) for each in ("django", "wsgi"))]


@pytest.fixture
def shop(ndb_client: ndb.Client, store: MemoryStore, clock: ManualClock) -> Shop:
    return Shop(ndb_client, userlock.LockService(store, clock=clock))


@pytest.fixture(params=_SITES)
def site(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Callable[..., Call]]:
    """Return a function that starts the site for some callers, in each integration."""
    with contextlib.ExitStack() as opened:
        yield lambda *callers, **options: opened.enter_context(
            open_site(request.param, **shop.options(*callers), **options)
        )


@pytest.fixture(scope="module")
def running_issuer() -> Iterator[Issuer]:
    with issuers.issuer() as found:
        yield found


@pytest.fixture
def issuer(running_issuer: Issuer) -> Issuer:
    running_issuer.keys, running_issuer.status = [issuers.KEY_ID], 200
    running_issuer.fetched = 0
    return running_issuer
