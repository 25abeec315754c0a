"""Test the inspector's pages of requests, as an operator uses them: with and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flask
import pytest
from google.cloud import ndb
from playwright.sync_api import Page, expect
from werkzeug.serving import make_server

import userlock
from tests.browser.access import assert_usable, serious
from tests.browser.conftest import DEVICES, SCHEMES, OpenWindow, served
from tests.browser.pictures import photograph
from userlock.contrib.flask import Flows, UserLock
from userlock.contrib.inspector import Inspector
from userlock.idempotency import Flow
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

KEY = "0ccb7813-e63d-4377-93c5-476cb93038f3"


class Travel:
    """A site with the inspector, whose rides are left unfinished while it is told to."""

    def __init__(self, client: Any) -> None:
        self.clock = ManualClock()
        service = userlock.LockService(MemoryStore(clock=self.clock), clock=self.clock)
        flows = Flows(clock=self.clock)
        self.broken = True
        app = flask.Flask("travel")

        @flows.idempotent(
            user=lambda: flask.request.headers["X-User"], name="rides.create", completable=True
        )
        def ride(flow: Flow, to: str) -> None:
            flow.phase("order", lambda: None)
            flow.external("charge", self._charge)
            with flow.last() as end:
                end.respond({"to": flow.arguments["to"]}, 201)

        app.post("/rides/<to>")(ride)
        UserLock(
            app,
            client=client,
            service=service,
            inspector=Inspector(lambda request: "olga", flows=flows),
        )
        self._client = app.test_client()
        self.server = make_server("127.0.0.1", 0, app, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _charge(self, key: str) -> str:
        if self.broken:
            raise RuntimeError("no provider")
        return "charge-1"

    def send(self, user: str, key: str = KEY, to: str = "home") -> None:
        headers = {"Idempotency-Key": key, "X-User": user}
        self._client.post(f"/rides/{to}", json={}, headers=headers)

    def fill(self) -> None:
        """Leave requests stuck, running and finished, of one user with each text."""
        self.broken = True
        self.send("ann", "payment-1234-of-november")
        self.send("ann", "payment-1234-of-november")
        self.send("zoe.longname+sales@example.org", to="x" * 200)
        self.clock.advance(20 * 60)
        self.send("bob")
        self.broken = False
        self.send("eve")
        self.send("eve")
        self.send("zoe.longname+sales@example.org", f"{KEY}-2")
        self.broken = True
        self.send("dan")
        self.clock.advance(1)
        self.broken = False
        self.send("dan")


@pytest.fixture
def travel(ndb_client: ndb.Client) -> Iterator[Travel]:
    travel = Travel(ndb_client)
    with served(travel.server):
        yield travel


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("device", DEVICES)
def test_a_stuck_request_is_looked_at_and_completed(
    open_window: OpenWindow, travel: Travel, screenshots: Path, device: str, scheme: Any
) -> None:
    travel.fill()
    page = open_window(travel.url, device, scheme)

    def look(at: str) -> None:
        picture = screenshots / f"requests-{at}-{device}-{scheme}.png"
        assert_usable(page, picture, full_page=True)

    _work(page, look)


def test_it_works_without_scripts(open_window: OpenWindow, travel: Travel) -> None:
    travel.fill()
    _work(open_window(travel.url, scripts=False), lambda at: None)


def test_hidden_users_and_keys_are_typed(
    open_window: OpenWindow, travel: Travel, screenshots: Path
) -> None:
    travel.fill()
    userlock.configure(show_ids="masked")
    page = open_window(travel.url)
    page.goto("/userlock/requests")
    photograph(page, screenshots / "requests-hidden.png", full_page=True)
    assert serious(page) == []
    page.get_by_label("Show the request with the key").fill("payment-1234-of-november")
    page.get_by_label("of the user").fill("ann")
    page.get_by_role("button", name="Show").click()
    photograph(page, screenshots / "requests-hidden-one.png", full_page=True)
    for button in ("Complete …", "Complete the request"):
        page.get_by_label("Type its key again").fill("payment-1234-of-november")
        page.get_by_label("and its user").fill("ann")
        page.get_by_role("button", name=button).click()
    expect(page.get_by_role("heading", name="Request completed")).to_be_visible()
    assert "ann" not in page.content()


def _work(page: Page, look: Any) -> None:
    page.goto("/userlock/")
    page.get_by_role("link", name="requests", exact=True).click()
    expect(page.get_by_role("heading", name="Requests", exact=True)).to_be_visible()
    look("list")
    page.get_by_label("User").fill("ann")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("heading", name="Requests of ann")).to_be_visible()
    look("user")
    page.get_by_role("button", name="Show rides.create of ann, payment-1234-of-november").click()
    expect(page.get_by_text("charge (asked)")).to_be_visible()
    look("one")
    page.get_by_role("button", name="Complete …").click()
    expect(page.get_by_role("heading", name="Complete the request rides.create?")).to_be_visible()
    look("question")
    page.get_by_role("button", name="Complete the request").click()
    expect(page.get_by_role("heading", name="Request completed")).to_be_visible()
    look("completed")
    page.get_by_role("link", name="Back to the requests").click()
    expect(page.get_by_role("region", name="Finished requests", exact=True)).to_contain_text("ann")
    look("after")
