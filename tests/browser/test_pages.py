"""Each page, on a phone and on a desktop, in both schemes: readable, accessible, without errors."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from sample_app.stack import Stack
from tests.browser.conftest import SCHEMES, VIEWPORTS
from tests.waiting import wait_until

PAGES = [
    "/",
    "/learners/ada",
    "/learners/nobody",
    "/lab/",
    "/lab/runs/RUN",
    "/lab/runs/RUN?beside=OTHER",
    "/userlock/",
    *(
        f"/userlock/{view}"
        for view in ("contention", "endpoints", "violations", "outages", "heartbeats")
    ),
]
_SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def runs(site: Stack) -> dict[str, str]:
    """Two runs of the lab to be looked at."""
    return {"RUN": finished(site, "none"), "OTHER": finished(site, "lock")}


def finished(site: Stack, between: str) -> str:
    form = f"between={between}&clients=4&requests=4&hold_ms=5".encode()
    with urllib.request.urlopen(f"{site.app_url}/lab/runs", form, timeout=30) as page:  # noqa: S310
        where: str = page.url

    def over() -> bool:
        with urllib.request.urlopen(f"{where}.json", timeout=30) as told:  # noqa: S310
            return bool(json.load(told)["over"])

    wait_until(over, seconds=60)
    return where.rpartition("/")[2]


def serious(page: Page) -> list[str]:
    """What axe finds that keeps people out."""
    found: dict[str, Any] = Axe().run(page).response
    return [
        f"{each['id']}: {each['help']} ({each['nodes'][0]['html'][:120]})"
        for each in found["violations"]
        if each["impact"] in _SERIOUS
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("device", VIEWPORTS)
@pytest.mark.parametrize("path", PAGES)
def test_a_page(
    browser: Browser,
    site: Stack,
    runs: dict[str, str],
    screenshots: Path,
    path: str,
    device: str,
    scheme: Any,
) -> None:
    for name, run in runs.items():
        path = path.replace(name, run)
    viewport: Any = VIEWPORTS[device]
    with browser.new_context(
        base_url=site.app_url, viewport=viewport, color_scheme=scheme
    ) as context:
        page = context.new_page()
        said: list[str] = []
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda message: said.append(message.text) if wrong(message) else None)
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == (404 if path.endswith("nobody") else 200)
        picture = path.strip("/").replace("/", "-").replace("?", "-") or "home"
        page.screenshot(path=screenshots / f"{picture}-{device}-{scheme}.png", full_page=True)
        assert serious(page) == []
        wider = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
        assert wider <= 0, f"{wider} pixels are out of sight"
        assert said == []


def wrong(message: Any) -> bool:
    # A page that is not there is meant to be reported.
    return message.type in ("error", "warning") and "404" not in message.text


def test_the_check_finds_what_keeps_people_out(page: Page) -> None:
    """The negative control."""
    page.set_content("<html><body><img src='x'><input><p style='color:#ddd'>pale</p></body></html>")
    found = " ".join(serious(page))
    assert "image-alt" in found
    assert "label" in found
    assert "color-contrast" in found


@pytest.mark.parametrize("path", ["/", "/learners/ada", "/lab/", "/userlock/"])
def test_the_keyboard_reaches_everything(page: Page, path: str) -> None:
    page.goto(path)
    # Of a group of radio buttons, the one that is chosen.
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], button, select, input:not([type=hidden])')]"
        ".filter(e => !e.disabled && (e.type !== 'radio' || e.checked)).map(e => e.outerHTML)"
    )
    assert wanted
    reached = set()
    for _ in wanted * 2:
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML"))
    assert [each for each in wanted if each not in reached] == []
