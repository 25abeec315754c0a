"""Test breaking a lock in the inspector, as an operator does it. `test_pages` has its views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

import userlock
from sample_app.stack import Stack
from tests.browser.access import assert_usable
from tests.browser.conftest import DEVICES, SCHEMES, OpenWindow


@pytest.fixture
def service(site: Stack) -> Iterator[userlock.LockService]:
    """Return a lock service on the site's store, for a holder that hangs."""
    url = f"memcache://{site.memcached_address}?prefix=learn"
    service = userlock.LockService.from_url(url)
    yield service
    service.close()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("device", DEVICES)
def test_breaking_a_lock(
    open_window: OpenWindow,
    site: Stack,
    service: userlock.LockService,
    screenshots: Path,
    device: str,
    scheme: Any,
) -> None:
    service.acquire("hanging", request="POST /learners/hanging/exercises")
    page = open_window(site.app_url, device, scheme)

    def look(at: str) -> None:
        assert_usable(page, screenshots / f"inspector-{at}-{device}-{scheme}.png")

    page.goto("/userlock/")
    look("locks")
    page.get_by_role("button", name="Break the lock hanging").click()
    expect(page.get_by_role("heading", name="Break the lock “hanging”?")).to_be_visible()
    expect(page.get_by_text("POST /learners/hanging/exercises")).to_be_visible()
    look("question")
    assert service.holder("hanging") is not None, "it asks first"
    page.get_by_role("button", name="Break the lock").click()
    expect(page.get_by_role("heading", name="Lock broken")).to_be_visible()
    look("done")
    assert service.holder("hanging") is None
