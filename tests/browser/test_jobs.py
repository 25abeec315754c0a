"""Test the page of jobs: a mail's job is tried again, dies, is redriven, and the mail arrives."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sample_app.stack import Stack
from tests.browser.access import serious
from tests.browser.conftest import SCHEMES, OpenWindow
from tests.browser.people import join
from tests.browser.pictures import photograph


@pytest.fixture(params=SCHEMES)
def window(request: pytest.FixtureRequest, open_window: OpenWindow, site: Stack) -> Iterator[Page]:
    yield open_window(site.app_url, scheme=request.param)
    mailbox = urllib.request.Request(f"{site.app_url}/jobs/post-office", b"open=yes")  # noqa: S310
    with urllib.request.urlopen(mailbox, timeout=30):  # noqa: S310
        pass


@pytest.mark.slow
def test_a_mail_that_is_tried_again_dies_and_is_redriven(
    window: Page, site: Stack, request: pytest.FixtureRequest, screenshots: Path
) -> None:
    scheme = request.node.callspec.params["window"]
    join(window, f"Patient {scheme}")
    learner = f"patient-{scheme}"
    window.goto("/jobs")
    window.get_by_role("button", name="Close the post office").click()
    expect(window.get_by_text("The post office is closed:")).to_be_visible()

    finish = f"{site.app_url}/api/learners/{learner}/exercises/primes/finish"
    asks = base64.b64encode(f"{learner}:".encode()).decode()
    headers = {"Authorization": f"Basic {asks}"}
    for url in (finish, f"{site.app_url}/tasks/award-badges"):
        sent = urllib.request.Request(url, method="POST", headers=headers)  # noqa: S310
        with urllib.request.urlopen(sent, timeout=30):  # noqa: S310
            pass
    job = window.locator("#jobs-rows tr").filter(has_text=learner)
    expect(job).to_contain_text("again, in", timeout=30_000)
    expect(job).to_contain_text("PostOfficeClosed")
    photograph(window, screenshots / f"jobs-again-{scheme}.png")
    expect(job).to_contain_text("dead", timeout=60_000)
    photograph(window, screenshots / f"jobs-dead-{scheme}.png")
    assert serious(window) == []

    window.get_by_role("button", name="Open the post office").click()
    window.get_by_role("button", name="Run the dead ones again").click()
    mail = window.locator("#mails-rows tr").filter(has_text=learner)
    expect(mail).to_contain_text("You have earned “First step”", timeout=30_000)
    expect(job).to_have_count(0)
    expect(window.get_by_role("button", name="Run the dead ones again")).to_be_hidden()
    window.goto(f"/learners/{learner}")
    expect(window.get_by_role("heading", name="Mails")).to_be_visible()


def test_without_scripts_the_inspector_lists_them(open_window: OpenWindow, site: Stack) -> None:
    page = open_window(site.app_url, scripts=False)
    page.goto("/jobs")
    page.get_by_role("main").get_by_role("link", name="inspector").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
