"""Test the page of payments: pressed twice, the worker killed in the middle, one charge."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from playwright.sync_api import Error, Page, expect

from sample_app.stack import Stack
from tests.browser.access import assert_usable
from tests.browser.conftest import SCHEMES, VIEWPORTS, OpenWindow
from tests.browser.people import join
from tests.browser.pictures import photograph


@pytest.fixture(params=SCHEMES)
def window(request: pytest.FixtureRequest, open_window: OpenWindow, site: Stack) -> Page:
    page = open_window(site.app_url, scheme=request.param)
    join(page, f"Buyer {request.param}")
    return page


def stage(page: Page, provider: str = "charges", worker: str = "lives") -> None:
    page.get_by_role("radio", name=provider, exact=True).check()
    page.get_by_role("radio", name=worker, exact=True).check()
    set_them = page.get_by_role("button", name="Set", exact=True)
    if set_them.is_visible():  # without scripts
        set_them.click()
        page.get_by_text("From now on, this goes wrong.").wait_for()


def nothing_goes_wrong(page: Page) -> None:
    page.get_by_role("button", name="Nothing goes wrong").click()
    for name in ("charges", "lives"):
        expect(page.get_by_role("radio", name=name, exact=True)).to_be_checked()


@pytest.mark.slow
def test_pressed_twice_and_killed_in_the_middle(
    window: Page, request: pytest.FixtureRequest, screenshots: Path
) -> None:
    scheme = request.node.callspec.params["window"]
    window.goto("/payments")
    answers, charges = window.locator("#answers li"), window.locator("#charges tr")

    window.get_by_role("radio", name="Stars by naked eye").check()
    window.get_by_role("button", name="Send it twice at once").click()
    expect(answers).to_have_count(2)
    expect(answers.filter(has_text="run, worker")).to_have_count(1, timeout=30_000)
    expect(answers.filter(has_text="the stored answer again")).to_have_count(1, timeout=30_000)
    expect(charges).to_have_count(1)
    expect(charges).to_contain_text("29.00")
    assert_usable(window, screenshots / f"payments-twice-{scheme}.png", full_page=True)

    window.get_by_role("link", name="New request").click()
    stage(window, worker="is killed after the charge, before it is stored")
    window.get_by_role("radio", name="A sundial").check()
    window.get_by_role("button", name="Buy").click()
    # Chromium itself may send a request again whose connection has ended: then there is no error.
    ended = answers.filter(has_text=re.compile("worker is dead|in attempt 2"))
    expect(ended).to_have_count(1, timeout=30_000)
    expect(window.locator("#orders tr").first).to_contain_text(
        re.compile("open|paid"), timeout=30_000
    )
    assert_usable(window, screenshots / f"payments-killed-{scheme}.png", full_page=True)
    nothing_goes_wrong(window)
    window.get_by_role("button", name="Buy").click()
    expect(answers.filter(has_text="in attempt 2")).not_to_have_count(0, timeout=30_000)
    expect(charges).to_have_count(2)
    expect(charges.first).to_contain_text("2 times")
    expect(charges.first).to_contain_text("45.00")
    expect(window.locator("#orders tr").first).to_contain_text("paid")
    photograph(window, screenshots / f"payments-{scheme}.png", full_page=True)
    window.set_viewport_size(VIEWPORTS["phone"])
    assert_usable(window, screenshots / f"payments-phone-{scheme}.png", full_page=True)


@pytest.mark.slow
def test_without_scripts(open_window: OpenWindow, site: Stack) -> None:
    page = open_window(site.app_url, scripts=False)
    join(page, "Plain Buyer")
    page.goto("/payments")
    assert page.get_by_role("button", name="Send it twice").is_hidden()
    stage(page, "is down for maintenance (503)", "is killed after the order is stored")
    page.get_by_role("radio", name="Stars by naked eye").check()
    where = page.url
    # The worker dies, and the browser shows so, unless it sends the form again itself.
    with contextlib.suppress(Error):
        page.get_by_role("button", name="Buy").click()
    page.goto(where)
    expect(page.locator("#orders tr")).to_contain_text("open")
    page.get_by_role("button", name="Send it again").click(timeout=30_000)
    expect(page.get_by_role("status")).to_contain_text("Another service does not answer")
    stage(page)
    assert page.url == where
    for words in ("Paid: “Stars by naked eye”", "This is the stored answer again."):
        page.get_by_role("button", name="Send it again").click(timeout=30_000)
        expect(page.get_by_role("status")).to_contain_text(words)
    expect(page.locator("#charges tr")).to_have_count(1)
    expect(page.locator("#charges tr")).to_contain_text("29.00")
