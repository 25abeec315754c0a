"""Test the contention lab: updates are lost without the lock, and none with it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from sample_app.stack import Stack
from tests.browser.access import assert_usable, serious
from tests.browser.conftest import LOOKS, VIEWPORTS, OpenWindow


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
    expect(page.get_by_role("region", name="Timeline").locator("svg")).to_be_visible()
    lost = re.search(r"(-?\d+)\s*$", row.inner_text())
    assert lost is not None
    return int(lost[1])


def test_updates_are_lost_without_the_lock_and_none_with_it(page: Page) -> None:
    assert run(page, "None: read, think, write") > 0
    assert run(page, "User lock") == 0
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("region", name="Timeline").locator("svg")).to_have_count(2)


@pytest.mark.slow
@LOOKS
def test_all_four(
    open_window: OpenWindow, site: Stack, screenshots: Path, device: str, scheme: Any
) -> None:
    page = open_window(site.app_url, device, scheme)
    page.goto("/lab/")
    assert serious(page) == []
    for label in ("Concurrent clients", "Requests per client"):
        page.get_by_label(label).fill("3")
    page.get_by_role("button", name="Run all four").click()
    expect(page.get_by_text("The result stays at")).to_be_visible(timeout=60_000)
    expect(page.get_by_role("region", name="Timeline")).to_have_count(4)
    expect(page.get_by_role("definition").first).to_contain_text("lost")
    assert_usable(page, screenshots / f"lab-{device}-{scheme}.png", full_page=True)
    # The figure that decides is seen without scrolling.
    head = page.get_by_role("rowheader", name="Lost updates").bounding_box()
    assert head is not None
    assert head["x"] + head["width"] <= VIEWPORTS[device]["width"]


@pytest.mark.slow
@pytest.mark.parametrize("scripts", [True, False])
def test_progress_is_shown(open_window: OpenWindow, site: Stack, scripts: bool) -> None:
    page = open_window(site.app_url, scripts=scripts)
    page.goto("/lab/")
    page.get_by_role("button", name="Run", exact=True).click()
    bar = page.locator("progress")
    timeline = page.get_by_role("region", name="Timeline").locator("svg")
    expect(bar.or_(timeline)).to_be_visible()
    while not scripts and not timeline.count():
        page.get_by_role("link", name="Refresh").click()
        expect(bar.or_(timeline)).to_be_visible()  # while a page comes, it has neither
    expect(timeline).to_be_visible(timeout=60_000)
