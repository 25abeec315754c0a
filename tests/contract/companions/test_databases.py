"""Each database has an outbox and flows of its own, whatever context is open."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.outbox.conftest import Mailbox
from userlock.errors import ConfigurationError
from userlock.idempotency import Flows, Request
from userlock.ndb import client as client_module
from userlock.ndb.context import current_context
from userlock.outbox import Outbox

KEY = "payment-1234-of-november"


def database() -> str:
    return current_context().client.database or ""


class Shop:
    """An outbox and flows in one database."""

    def __init__(self, client: ndb.Client) -> None:
        self.client = client
        self.mailbox = Mailbox()
        self.outbox = Outbox(self.mailbox, client=client)
        self.flows = Flows(client=client)
        self.ran: list[str] = []

        @self.outbox.job(name="mail")
        def mail(user_id: str) -> None:
            self.ran.append(database())

        self.mail = mail

    def work(self) -> None:
        """Do everything that opens a context by itself."""
        with self.client.context():
            key = ndb.transaction(lambda: self.mail.stage("ann")).key
        self.outbox.relay()
        self.outbox.run(key)
        with self.client.context():
            later = ndb.transaction(lambda: self.mail.stage("ann", delay=60)).key
        with self.outbox.context():
            assert self.outbox.cancel(later)
        with self.flows.context():
            request = Request("ann", KEY, "sell")
            answer = self.flows.run(request, lambda flow: flow.phase("p", database))
        assert answer.value == database_of(self.client)


def database_of(client: ndb.Client) -> str:
    return client.database or ""


@pytest.fixture
def shops(ndb_client: ndb.Client, service: userlock.LockService) -> list[Shop]:
    userlock.configure(service=service)
    return [Shop(ndb_client), Shop(ndb.Client(database="second"))]


def test_each_works_in_its_own(shops: list[Shop]) -> None:
    for shop in shops:
        shop.work()
        assert shop.ran == [database_of(shop.client)]


def work_within(shop: Shop, other: Shop) -> None:
    with other.client.context():
        key: Any = ndb.transaction(lambda: other.mail.stage("bob")).key
        with shop.outbox.context():
            with shop.flows.context():
                assert database() == database_of(shop.client)
            shop.outbox.relay()
        assert database() == database_of(other.client)
        other.outbox.run(key)
    assert other.ran == [database_of(other.client)]


def test_a_context_of_another_one_is_open(shops: list[Shop]) -> None:
    work_within(shops[0], shops[1])


def test_a_job_is_not_staged_in_another_database(shops: list[Shop]) -> None:
    with shops[0].client.context(), pytest.raises(ConfigurationError, match="another database"):
        shops[1].mail.stage_now("ann")


def test_the_control_any_open_context_does(
    shops: list[Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_place_of", lambda client: None)
    with pytest.raises(AssertionError):
        work_within(shops[0], shops[1])
