"""Test the studio, with JavaScript and without: names, screens, the plan, deletions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sample_app.stack import Stack
from tests.browser.conftest import OpenWindow
from tests.browser.people import join
from tests.browser.pictures import photograph, upload


@pytest.fixture(params=[True, False], ids=["scripts", "no-scripts"])
def window(request: pytest.FixtureRequest, open_window: OpenWindow, site: Stack) -> Page:
    """Open a phone's window as a new learner, with JavaScript and without."""
    kind, scheme = ("scripted", "dark") if request.param else ("plain", "light")
    page = open_window(site.app_url, "phone", scheme, scripts=request.param)
    join(page, f"{kind} {request.node.originalname.replace('_', ' ')}")
    page.goto("/projects")
    return page


def begin(window: Page, title: str) -> None:
    window.get_by_label("Title").fill(title)
    window.get_by_role("button", name="Begin").click()
    expect(window.get_by_role("status")).to_contain_text(f"“{title}” has begun.")


def reload_until(window: Page, there: Callable[[], bool]) -> None:
    """Load the page again until the job that runs beside it has changed it."""
    for _ in range(60):
        if there():
            return
        window.wait_for_timeout(250)
        window.reload()
    assert there()


def test_names(window: Page) -> None:
    begin(window, "A sundial")
    window.get_by_label("Title").fill("A SUNDIAL")
    window.get_by_role("button", name="Begin").click()
    expect(window.get_by_role("status")).to_contain_text("There already is a project")
    window.get_by_role("button", name="Archive A sundial").click()
    begin(window, "A sundial")
    window.get_by_role("button", name="Activate A sundial").click()
    expect(window.get_by_role("status")).to_contain_text("“A sundial (Copy 1)” is active again.")
    window.get_by_role("link", name="A sundial (Copy 1)", exact=True).click()
    window.get_by_label("New title").fill("A moon clock")
    window.get_by_role("button", name="Rename").click()
    expect(window.get_by_role("heading", level=1)).to_have_text("A moon clock")
    window.get_by_role("button", name="Duplicate A moon clock").click()
    expect(window.get_by_role("heading", level=1)).to_have_text("A moon clock (Copy 1)")


@pytest.mark.slow
def test_screens_and_a_deletion(window: Page, screenshots: Path) -> None:
    begin(window, "A sundial")
    window.get_by_role("link", name="A sundial", exact=True).click()
    upload(window, "home.png", "PNG")
    expect(window.get_by_role("status")).to_contain_text("“home” is a new screen.")
    upload(window, "home@2x.jpg", "JPEG", "navy")
    expect(window.get_by_role("status")).to_contain_text("is version 2 of the screen “home”.")
    upload(window, "about.gif", "GIF", "olive")
    broken = {"name": "page.png", "mimeType": "image/png", "buffer": b"<html>"}
    window.get_by_label("Picture").set_input_files(broken)  # type: ignore[arg-type]
    window.get_by_role("button", name="Upload").click()
    expect(window.get_by_role("status")).to_contain_text("this is no picture")
    photograph(window, screenshots / "studio-project.png", full_page=True)
    window.get_by_role("button", name="Archive about").click()
    expect(window.get_by_role("region", name="Archived screens")).to_contain_text("about")
    window.get_by_role("link", name="home", exact=True).click()
    expect(window.get_by_text("Version 2: home@2x.jpg")).to_be_visible()
    shown = window.get_by_role("img", name="home, version 2")
    assert shown.evaluate("image => image.naturalWidth") == 320
    window.get_by_role("link", name="A sundial").click()
    window.get_by_role("link", name="Delete A sundial").click()
    expect(window.get_by_text("Its 2 screens, with all versions, go with it.")).to_be_visible()
    window.get_by_role("button", name="Delete it").click()
    # The page loads itself again until the job is done.
    expect(window.get_by_role("heading", level=1)).to_have_text(
        "All of it is deleted", timeout=30_000
    )
    photograph(window, screenshots / "studio-deletion.png", full_page=True)
    window.get_by_role("link", name="Back to the projects").click()
    expect(window.get_by_role("region", name="Active")).to_contain_text("None yet.")


def test_over_the_plan(window: Page, screenshots: Path) -> None:
    for title in ("one", "two", "three", "four"):
        begin(window, title)
    flag = window.get_by_text("over your plan: read only")
    reload_until(window, lambda: flag.count() == 1)
    photograph(window, screenshots / "studio-over-quota.png", full_page=True)
    window.get_by_role("button", name="Upgrade to plus").click()
    reload_until(window, lambda: flag.count() == 0)
    expect(window.get_by_role("heading", name="Your plan: plus")).to_be_visible()
