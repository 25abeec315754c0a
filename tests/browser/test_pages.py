"""Test each page on phone and desktop, light and dark: readable, accessible, without errors."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from sample_app.stack import Stack
from tests.browser.access import assert_usable, serious
from tests.browser.conftest import LOOKS, OpenWindow
from tests.browser.people import sign_in
from tests.browser.pictures import upload
from tests.waiting import wait_until

#: Each page with the user that is signed in.
PAGES = [
    ("", "/"),
    ("", "/learners/ada"),
    ("", "/learners/nobody"),
    ("", "/nightly"),
    ("", "/jobs"),
    ("Ada Lindqvist", "/"),
    ("Ada Lindqvist", "/exercises/primes"),
    ("Ada Lindqvist", "/videos/sundials"),
    ("Chen Mei", "/videos/calendars"),
    ("Ada Lindqvist", "/videos/tides"),
    ("Ada Lindqvist", "/projects"),
    ("Ada Lindqvist", "/projects/PROJECT"),
    ("Ada Lindqvist", "/projects/PROJECT/screens/SCREEN"),
    ("Ada Lindqvist", "/projects/PROJECT/delete"),
    ("Ada Lindqvist", "/deletions/DELETION"),
    ("Ada Lindqvist", "/payments"),
    ("Mira Solberg", "/coach"),
    ("", "/lab/"),
    ("", "/lab/runs/RUN"),
    ("", "/lab/runs/RUN?other=OTHER"),
    ("", "/userlock/"),
]


@pytest.fixture(scope="module")
def places(browser: Browser, site: Stack) -> dict[str, str]:
    """Make two runs of the lab, and a project with a screen. Return their addresses."""
    with browser.new_context(base_url=site.app_url) as context:
        page = context.new_page()
        sign_in(page, "Ada Lindqvist")
        page.goto("/projects")
        page.get_by_label("Title").fill("A sundial for the balcony")
        page.get_by_role("button", name="Begin").click()
        page.get_by_label("Title").fill("A moon clock")
        page.get_by_role("button", name="Begin").click()
        page.get_by_role("link", name="Delete A moon clock").click()
        page.get_by_role("button", name="Delete it").click()
        deletion = page.url.rpartition("/")[2]
        page.goto("/projects")
        page.get_by_role("link", name="A sundial for the balcony", exact=True).click()
        project = page.url.rpartition("/")[2]
        upload(page, "home.png", "PNG")
        page.get_by_role("link", name="home", exact=True).click()
        screen = page.url.rpartition("/")[2]
    return {
        "RUN": finished(site, "none"),
        "OTHER": finished(site, "lock"),
        "PROJECT": project,
        "SCREEN": screen,
        "DELETION": deletion,
    }


def finished(site: Stack, between: str) -> str:
    form = f"between={between}&clients=4&requests=4&hold_ms=5".encode()
    with urllib.request.urlopen(f"{site.app_url}/lab/runs", form, timeout=30) as page:  # noqa: S310
        where: str = page.url

    def over() -> bool:
        with urllib.request.urlopen(f"{where}.json", timeout=30) as told:  # noqa: S310
            return bool(json.load(told)["over"])

    wait_until(over, seconds=60)
    return where.rpartition("/")[2]


@LOOKS
@pytest.mark.parametrize(("who", "path"), PAGES)
def test_a_page(
    open_window: OpenWindow,
    site: Stack,
    places: dict[str, str],
    screenshots: Path,
    who: str,
    path: str,
    device: str,
    scheme: Any,
) -> None:
    for name, place in places.items():
        path = path.replace(name, place)
    page = open_window(site.app_url, device, scheme)
    if who:
        sign_in(page, who)
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if wrong(message) else None)
    answer = page.goto(path)
    assert answer is not None
    assert answer.status == (404 if path.endswith("nobody") else 200)
    picture = f"{who} {path}".strip(" /").replace("/", "-").replace("?", "-") or "choice"
    assert_usable(page, screenshots / f"{picture}-{device}-{scheme}.png", full_page=True)
    assert said == []


def wrong(message: Any) -> bool:
    # The browser reports the missing page, as it should.
    return message.type in ("error", "warning") and "404" not in message.text


def test_the_check_finds_inaccessible_pages(page: Page) -> None:
    """The negative control."""
    page.set_content("<html><body><img src='x'><input><p style='color:#ddd'>pale</p></body></html>")
    found = " ".join(serious(page))
    assert "image-alt" in found
    assert "label" in found
    assert "color-contrast" in found


@pytest.mark.parametrize(
    ("who", "path"),
    [
        ("", "/lab/"),
        ("", "/userlock/"),
        ("Ada Lindqvist", "/exercises/moon-phases"),
        ("Ada Lindqvist", "/projects"),
        ("Mira Solberg", "/coach"),
    ],
)
def test_the_keyboard_reaches_everything(page: Page, who: str, path: str) -> None:
    if who:
        sign_in(page, who)
    page.goto(path)
    # Of a group of radio buttons, the chosen one, or the first.
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], button, select, input:not([type=hidden])')]"
        ".filter(e => !e.disabled && (e.type !== 'radio' || e === ("
        "document.querySelector(`input[name=${e.name}]:checked`)"
        " || document.querySelector(`input[name=${e.name}]`)))).map(e => e.outerHTML)"
    )
    assert wanted
    reached = set()
    for _ in wanted * 2:
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML"))
    assert [each for each in wanted if each not in reached] == []


@pytest.mark.parametrize("path", ["/", "/userlock/"])
def test_nothing_that_is_put_into_a_page_runs(page: Page, path: str) -> None:
    """The negative control of the pages without errors: the policy is in force."""
    page.goto(path)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', "
        '\'<p id=trap style="color: red">x</p><img src=x onerror="window.ran = 1">\');'
        "const script = document.createElement('script');"
        "script.textContent = 'window.ran = 2'; document.body.append(script);"
    )
    wait_until(lambda: page.evaluate("1") and len(said) >= 2)
    assert page.evaluate("window.ran") is None
    assert page.evaluate("getComputedStyle(document.getElementById('trap')).color") != (
        "rgb(255, 0, 0)"
    )
    assert "Content Security Policy" in " ".join(said)
