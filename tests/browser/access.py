"""Check that a page can be used: with axe for accessibility, and by its width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.browser.pictures import photograph

_SERIOUS = ("serious", "critical")


def serious(page: Page) -> list[str]:
    """Return the serious accessibility problems of a page."""
    found: dict[str, Any] = Axe().run(page).response
    return [
        f"{each['id']}: {each['help']} ({each['nodes'][0]['html'][:120]})"
        for each in found["violations"]
        if each["impact"] in _SERIOUS
    ]


def assert_usable(page: Page, picture: Path, *, full_page: bool = False) -> None:
    """Photograph a page. It is accessible, and no wider than its window."""
    photograph(page, picture, full_page=full_page)
    assert serious(page) == []
    wider = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
    assert wider <= 0, f"{picture.stem}: {wider} pixels are hidden"
