"""Sign in to the site."""

from __future__ import annotations

from playwright.sync_api import Page


def sign_in(page: Page, name: str) -> None:
    """Sign in as a learner or a coach, by choosing a name."""
    page.goto("/")
    page.get_by_role("button", name=name).click()
    page.get_by_role("button", name="Sign out").wait_for()


def join(page: Page, name: str) -> None:
    """Sign in as a new learner, unknown to other tests."""
    page.goto("/")
    page.get_by_label("Name").fill(name)
    page.get_by_role("button", name="Begin").click()
    page.get_by_text(f"Welcome, {name}.").wait_for()
