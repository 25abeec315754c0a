"""An app whose requests an operator looks at and completes."""

from __future__ import annotations

from typing import Any

import flask
import pytest
from flask.testing import FlaskClient
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import KEY, rows
from tests.contract.outbox.operators.test_inspector import form
from userlock.contrib.flask import Flows, UserLock
from userlock.contrib.inspector import Inspector
from userlock.idempotency import Flow
from userlock.testing import ManualClock

NOW = "/userlock/requests/complete/now"


class Ended(BaseException):
    """The process ends here, and gives nothing back."""


class Shop:
    """An app whose requests fail while they are told to.

    Attributes:
        error: raised after the first phase.
        sold: the users, in their order.
        web: an operator's browser.
    """

    def __init__(
        self, client: ndb.Client, service: userlock.LockService, clock: ManualClock
    ) -> None:
        self.clock = clock
        self.flows = Flows(client=client, service=service, clock=clock)
        self.error: BaseException | None = None
        self.sold: list[str] = []
        self.sell = self.flows.function(name="rides")(self._sell)
        self.client = client
        self.app = flask.Flask("shop", template_folder=None)
        self.app.secret_key = "secret"
        self.app.testing = True
        inspector = Inspector(lambda request: "olga", flows=self.flows)
        UserLock(self.app, client=client, service=service, inspector=inspector)
        self.service = service
        self.web = self.app.test_client()

    def _sell(self, flow: Flow, cents: int = 5) -> dict[str, Any]:
        flow.phase("order", lambda: None)
        if self.error is not None:
            raise self.error
        self.sold.append(flow.user_id)
        return {"attempt": flow.attempt}

    def ask(self, user: str, key: str = KEY, tenant: str = "") -> Any:
        with self.client.context(namespace=tenant):
            return self.sell(user, key)

    def fail(self, user: str, key: str = KEY, tenant: str = "") -> None:
        """Leave a request unfinished."""
        self.error = Ended("a \x1b[2J bug")
        with pytest.raises(Ended):
            self.ask(user, key, tenant)
        self.error = None

    def leave(self, user: str, key: str = KEY) -> None:
        """Leave a request unfinished, and stuck."""
        self.fail(user, key)
        self.clock.advance(90)

    def rows(self) -> list[Any]:
        with self.client.context():
            return rows()


def named(user: str = "ann", key: str = KEY) -> dict[str, Any]:
    return {
        "user": user.encode("utf-8", "surrogatepass"),
        "key": key.encode("utf-8", "surrogatepass"),
    }


def asked(web: FlaskClient, user: str = "ann", key: str = KEY) -> dict[str, str]:
    """Ask for a completion; return the hidden values of the question's form."""
    answer = web.post("/userlock/requests/complete", data=named(user, key))
    assert answer.status_code == 200
    return form(answer.text, "/complete/now")


def document(web: FlaskClient, query: str = "") -> Any:
    return web.get(f"/userlock/requests.json{query}").get_json()


@pytest.fixture
def shop(
    ndb_client: ndb.Client, service: userlock.LockService, clock: ManualClock, own_listeners: None
) -> Shop:
    return Shop(ndb_client, service, clock)
