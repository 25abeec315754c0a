"""Pictures of pages, for people: no test depends on what is on them."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Error, Page

_TIMES = 3


def photograph(page: Page, file: Path, *, full_page: bool = False) -> None:
    """Take a picture. On a busy machine Chromium may fail to take one; then it is asked again."""
    for left in reversed(range(_TIMES)):
        try:
            page.screenshot(path=file, full_page=full_page)
            return
        except Error:
            if not left:
                raise
