"""A site with the outbox's endpoints, in each integration, and an issuer of tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.outbox.endpoints import issuer as issuers
from tests.contract.outbox.endpoints.issuer import Issuer
from tests.contract.outbox.endpoints.sites import SITES, Answer, Call
from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.outbox import Outbox
from userlock.outbox.authentication import Caller, OidcToken
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

SECRET = "correct-horse-battery-staple"
JOBS, RELAY = "/userlock/jobs", "/userlock/relay"


class Anybody:
    """Lets everybody in: the negative control."""

    def check(self, header: Callable[[str], str | None]) -> None:
        pass


class Shop:
    """An outbox with a job that notes its runs."""

    def __init__(self, client: ndb.Client, service: userlock.LockService) -> None:
        self.client = client
        self.service = service
        self.outbox = Outbox("inline://?threads=0")
        self.ran: list[str] = []
        self.outbox.job(name="note")(self.note)

    def note(self, user_id: str) -> None:
        scope = userlock.current_scope()
        assert scope is not None
        self.ran.append(f"{user_id} {scope.priority.value} {scope.batch_work} {scope.request}")

    def stage(self, user_id: str = "ann") -> str:
        with self.client.context():
            return self.outbox.jobs["note"].stage_now(user_id).key

    def options(self, *callers: Caller) -> dict[str, Any]:
        endpoints = OutboxEndpoints(self.outbox, callers=callers)
        return {"client": self.client, "service": self.service, "outbox": endpoints}


@pytest.fixture
def shop(ndb_client: ndb.Client, store: MemoryStore, clock: ManualClock) -> Shop:
    return Shop(ndb_client, userlock.LockService(store, clock=clock))


@pytest.fixture(scope="module")
def running_issuer() -> Iterator[Issuer]:
    with issuers.issuer() as found:
        yield found


@pytest.fixture
def issuer(running_issuer: Issuer) -> Issuer:
    running_issuer.keys, running_issuer.status = [issuers.KEY_ID], 200
    running_issuer.fetched = 0
    return running_issuer


#: `make test` tries Flask, `make test-all` the others as well.
_SITES = ["flask", *(pytest.param(each, marks=pytest.mark.slow) for each in ("django", "wsgi"))]


@pytest.fixture(params=_SITES)
def site(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Callable[..., Call]]:
    """Return a function that starts the site for some callers, in each integration."""
    opened = []

    def start(*callers: Caller, **options: Any) -> Call:
        context = SITES[request.param](**shop.options(*callers), **options)
        opened.append(context)
        return context.__enter__()

    yield start
    for context in opened:
        context.__exit__(None, None, None)


def oidc(
    issuer: Issuer, form: str = "certificates", kind: type[OidcToken] = OidcToken
) -> OidcToken:
    return kind(
        audience=issuers.AUDIENCE,
        service_account=issuers.ACCOUNT,
        certs_url=issuer.certs_url(form),
    )


def is_bare(answer: Answer) -> bool:
    """Return whether a refusal tells its status and nothing else."""
    return json.loads(answer.body).keys() == {"title", "status"} and len(answer.body) < 80
