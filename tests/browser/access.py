"""Find accessibility problems with axe."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_SERIOUS = ("serious", "critical")


def serious(page: Page) -> list[str]:
    """Return the serious accessibility problems of a page."""
    found: dict[str, Any] = Axe().run(page).response
    return [
        f"{each['id']}: {each['help']} ({each['nodes'][0]['html'][:120]})"
        for each in found["violations"]
        if each["impact"] in _SERIOUS
    ]
