"""The sample app in a real browser: the distribution's Chromium, headless."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from sample_app.stack import Stack
from tests.servers import real

#: Phones and desktops, by day and by night.
VIEWPORTS = {"phone": {"width": 375, "height": 812}, "desktop": {"width": 1280, "height": 800}}
SCHEMES = ("light", "dark")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The site with its demo learners."""
    stack = Stack(
        log_dir=tmp_path_factory.mktemp("site"), memcached_binary=real("memcached", "memcached")
    )
    with stack:
        seed = urllib.request.Request(f"{stack.app_url}/tasks/seed", method="POST")  # noqa: S310
        with urllib.request.urlopen(seed, timeout=30):  # noqa: S310
            pass
        yield stack


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Gone before other tests: Playwright's event loop runs in this thread."""
    with sync_playwright() as playwright:
        # --no-sandbox: tests may be run by root, whom Chromium's sandbox refuses.
        browser = playwright.chromium.launch(
            executable_path=real("chromium", "chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, site: Stack) -> Iterator[Page]:
    """A desktop's window."""
    with browser.new_context(base_url=site.app_url, viewport={"width": 1280, "height": 800}) as it:
        yield it.new_page()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pictures are put, to be looked at."""
    return tmp_path_factory.mktemp("screenshots")
