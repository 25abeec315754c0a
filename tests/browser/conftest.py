"""Open the sample app in a real browser: the distribution's Chromium, headless."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb
from playwright.sync_api import Browser, Page, sync_playwright
from werkzeug.serving import BaseWSGIServer

import userlock_emulator
from sample_app.stack import Stack
from tests.servers import real
from userlock.events import LISTENERS

#: The devices that pages are tested on. `make test-browser` takes the phone: room is scarce there.
VIEWPORTS: dict[str, Any] = {
    "phone": {"width": 320, "height": 640},  # the narrowest of WCAG 1.4.10
    "desktop": {"width": 1280, "height": 800},
}
DEVICES = ("phone", pytest.param("desktop", marks=pytest.mark.slow))
#: `make test-browser` looks at the light phone, `make test-all` at the other one too.
LOOKS = pytest.mark.parametrize(
    ("device", "scheme"),
    [("phone", "light"), pytest.param("desktop", "dark", marks=pytest.mark.slow)],
)
#: `make test-browser` looks at the light one, `make test-all` at the dark one as well.
SCHEMES = ("light", pytest.param("dark", marks=pytest.mark.slow))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Start the site with its demo learners."""
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
    """Start a browser. It ends before other tests: Playwright's event loop runs in this thread."""
    with sync_playwright() as playwright:
        # --no-sandbox: root may run the tests, and Chromium's sandbox refuses root.
        browser = playwright.chromium.launch(
            executable_path=real("chromium", "chromium"), args=["--no-sandbox"]
        )
        yield browser
        browser.close()


#: Opens a window, in which addresses begin with a URL: see `open_window`.
OpenWindow = Callable[..., Page]


@pytest.fixture
def open_window(browser: Browser) -> Iterator[OpenWindow]:
    """Provide windows of a device and a colour scheme; they are closed after the test."""
    with contextlib.ExitStack() as opened:

        def open_(
            url: str | None, device: str = "desktop", scheme: Any = "light", *, scripts: bool = True
        ) -> Page:
            context = browser.new_context(
                base_url=url,
                viewport=VIEWPORTS[device],
                color_scheme=scheme,
                java_script_enabled=scripts,
            )
            return opened.enter_context(context).new_page()

        yield open_


@pytest.fixture
def page(open_window: OpenWindow, site: Stack) -> Page:
    """Open a desktop window."""
    return open_window(site.app_url)


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the screenshots."""
    return tmp_path_factory.mktemp("screenshots")


@pytest.fixture
def ndb_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[ndb.Client]:
    """Start a Datastore emulator for a site of the test's own; return a client of it."""
    monkeypatch.setattr(LISTENERS, "_listeners", LISTENERS._listeners)  # the inspector adds one
    with userlock_emulator.start() as datastore:
        for name, value in datastore.env.items():
            monkeypatch.setenv(name, value)
        yield ndb.Client()


@contextlib.contextmanager
def served(server: BaseWSGIServer) -> Iterator[None]:
    """Serve requests in a thread during a block."""
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
