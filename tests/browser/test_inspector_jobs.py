"""Test the inspector's pages of jobs, as an operator uses them: with and without scripts."""

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
from tests.browser.access import assert_usable
from tests.browser.conftest import DEVICES, SCHEMES, OpenWindow, served
from userlock.contrib.flask import UserLock
from userlock.contrib.inspector import Inspector
from userlock.outbox import Outbox, Retry
from userlock.stores import MemoryStore

HOSTILE = "\u202eevil\x1b[2J<script>" + "x" * 1_000


class Office:
    """A site with the inspector and an outbox, whose jobs die."""

    def __init__(self, client: Any) -> None:
        service = userlock.LockService(MemoryStore())
        self.outbox = Outbox("inline://?threads=0", client=client, service=service)
        once = Retry(attempts=1)

        @self.outbox.job(name="receipts.send", retry=once)
        def send(user_id: str, text: str) -> None:
            raise RuntimeError(text)

        @self.outbox.job(name="books.close", retry=once, on_dead="block")
        def close(user_id: str) -> None:
            raise KeyError(user_id)

        self._send, self._close = send, close
        app = flask.Flask("office")
        UserLock(
            app,
            client=client,
            service=service,
            inspector=Inspector(lambda request: "olga", outbox=self.outbox),
        )
        self.server = make_server("127.0.0.1", 0, app, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def fill(self, number: int) -> None:
        """Let jobs die, and others wait behind one of them."""
        with self.outbox.context():
            keys = [self._close.stage_now("ann").key]
            keys += [self._send.stage_now(f"user{each}", HOSTILE).key for each in range(number)]
            for key in keys:
                self.outbox.run(key)
            self._send.stage_now("ann", HOSTILE)


@pytest.fixture
def office(ndb_client: ndb.Client) -> Iterator[Office]:
    office = Office(ndb_client)
    with served(office.server):
        yield office
    office.outbox.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("device", DEVICES)
def test_dead_jobs_are_looked_at_redriven_and_purged(
    open_window: OpenWindow, office: Office, screenshots: Path, device: str, scheme: Any
) -> None:
    office.fill(3)
    page = open_window(office.url, device, scheme)

    def look(at: str) -> None:
        picture = screenshots / f"jobs-{at}-{device}-{scheme}.png"
        assert_usable(page, picture)

    _work(page, look)


def test_it_works_without_scripts(open_window: OpenWindow, office: Office) -> None:
    office.fill(3)
    _work(open_window(office.url, scripts=False), lambda at: None)


def _work(page: Page, look: Any) -> None:
    page.goto("/userlock/")
    page.get_by_role("link", name="outbox", exact=True).click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    expect(page.get_by_text("holds it up, which is dead")).to_be_visible()
    look("status")
    page.get_by_role("link", name="List receipts.send RuntimeError").click()
    look("list")
    page.get_by_role("link", name="Show receipts.send RuntimeError of user1").click()
    expect(page.get_by_text("It is dead: it runs again if it is redriven.")).to_be_visible()
    look("one")
    page.get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("heading", name="Redrive 1 dead job?")).to_be_visible()
    look("redrive")
    page.get_by_role("button", name="Redrive 1 dead job").click()
    expect(page.get_by_role("heading", name="1 job redriven")).to_be_visible()
    look("redriven")
    page.get_by_role("link", name="Back to the jobs").click()
    page.get_by_role("button", name="Purge receipts.send RuntimeError").click()
    look("purge")
    page.get_by_label("Type the number of jobs (2)").fill("3")
    page.get_by_role("button", name="Purge 2 dead jobs for good").click()
    expect(page.get_by_role("heading", name="Nothing was purged")).to_be_visible()
    look("refused")
    page.get_by_role("link", name="Back to the jobs").click()
    page.get_by_role("button", name="Purge receipts.send RuntimeError").click()
    page.get_by_label("Type the number of jobs (2)").fill("2")
    page.get_by_role("button", name="Purge 2 dead jobs for good").click()
    expect(page.get_by_role("heading", name="2 jobs purged")).to_be_visible()
    page.goto("/userlock/outbox?dead=yes")
    expect(page.get_by_text("books.close KeyError", exact=True).first).to_be_visible()
    expect(page.get_by_text("receipts.send RuntimeError")).to_have_count(0)
