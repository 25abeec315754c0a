"""Test the contention lab: updates are lost without the lock, and none with it."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from sample_app.stack import Stack


def run(page: Page, between: str) -> int:
    """Start a run. Return the number of lost updates that the page shows."""
    page.goto("/lab/")
    page.get_by_label(between, exact=True).check()
    page.get_by_label("Concurrent clients").fill("6")
    page.get_by_label("Requests per client").fill("8")
    page.get_by_label("Time between read and write, in milliseconds").fill("10")
    page.get_by_role("button", name="Run", exact=True).click()
    row = page.get_by_role("row").filter(has_text="Lost updates")
    expect(row).to_be_visible(timeout=60_000)
    expect(page.locator("svg.timeline")).to_be_visible()
    lost = re.search(r"(-?\d+)\s*$", row.inner_text())
    assert lost is not None
    return int(lost[1])


def test_updates_are_lost_without_the_lock_and_none_with_it(page: Page) -> None:
    assert run(page, "None: read, think, write") > 0
    assert run(page, "User lock") == 0
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("svg.timeline")).to_have_count(2)


@pytest.mark.parametrize("scripts", [True, False])
def test_progress_is_shown(browser: Browser, site: Stack, scripts: bool) -> None:
    with browser.new_context(base_url=site.app_url, java_script_enabled=scripts) as context:
        page = context.new_page()
        page.goto("/lab/")
        page.get_by_role("button", name="Run", exact=True).click()
        bar, timeline = page.locator("progress"), page.locator("svg.timeline")
        expect(bar.or_(timeline)).to_be_visible()
        while not scripts and bar.count():
            page.get_by_role("link", name="Refresh").click()
        expect(timeline).to_be_visible(timeout=60_000)
