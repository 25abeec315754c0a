"""Pictures: of pages, for people; and some to upload. No test depends on what is on them."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image
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


def upload(page: Page, name: str, kind: str, colour: str = "teal") -> None:
    """Upload a picture on the page of a project."""
    file = io.BytesIO()
    Image.new("RGB", (320, 240), colour).save(file, kind)
    picture = {"name": name, "mimeType": "image/png", "buffer": file.getvalue()}
    page.get_by_label("Picture").set_input_files(picture)  # type: ignore[arg-type]
    page.get_by_role("button", name="Upload").click()
