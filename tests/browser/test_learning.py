"""Test what learners and coaches do, with JavaScript and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sample_app import catalogue
from sample_app.stack import Stack
from tests.browser.access import serious
from tests.browser.conftest import OpenWindow
from tests.browser.people import join, sign_in
from tests.browser.pictures import photograph


@pytest.fixture(params=[True, False], ids=["scripts", "no-scripts"])
def window(request: pytest.FixtureRequest, open_window: OpenWindow, site: Stack) -> Page:
    """Open a phone's window, with JavaScript and without."""
    return open_window(site.app_url, "phone", scripts=request.param)


def newcomer(request: pytest.FixtureRequest) -> str:
    """Return a name of this test's own. Its beginning becomes the id."""
    scripts = "scripted" if request.node.callspec.params["window"] else "plain"
    return f"{scripts} {request.node.originalname.replace('_', ' ')}"


def test_an_exercise(window: Page, request: pytest.FixtureRequest, screenshots: Path) -> None:
    join(window, newcomer(request))
    exercise = catalogue.exercise("primes")
    window.get_by_role("link", name=exercise.title).click()
    for question in exercise.questions:
        group = window.get_by_role("group", name=question.text)
        group.get_by_label(question.choices[0], exact=True).check()
    window.get_by_role("button", name="Check my answers").click()
    expect(window.get_by_role("alert")).to_contain_text("0 of 3 are right")
    photograph(window, screenshots / "wrong-answers.png", full_page=True)
    if request.node.callspec.params["window"]:  # axe is a script
        assert serious(window) == []
    for question in exercise.questions:
        group = window.get_by_role("group", name=question.text)
        expect(group).to_contain_text(question.why)
        expect(group.get_by_label(question.choices[0], exact=True)).to_be_checked()
        group.get_by_label(question.choices[question.right], exact=True).check()
    window.get_by_role("button", name="Check again").click()
    expect(window.get_by_role("status")).to_contain_text("finished: 15 points")
    expect(window.get_by_text("Done today.")).to_be_visible()
    window.get_by_role("link", name="Today").first.click()
    expect(window.locator("#points")).to_have_text("15")


def test_a_video_is_not_to_be_rushed_through(window: Page, request: pytest.FixtureRequest) -> None:
    join(window, newcomer(request))
    window.get_by_role("link", name="Why the sea goes out").click()
    window.get_by_role("button", name="Begin").click()
    expect(window.get_by_text("Twice a day the sea")).to_be_visible()
    window.get_by_role("button", name="I have read this").click()
    notice = window.get_by_role("status")
    expect(notice).to_contain_text("That was quick!")
    expect(notice).to_have_class("flash notice")  # nothing is wrong
    expect(window.get_by_text("0 of 4 parts read")).to_be_visible()


#: Read within the page: a driver would wait for the answer.
_STATE_AFTER_A_CLICK = """button => new Promise(resolve => {
    button.click();
    setTimeout(() => resolve([button.form.ariaBusy, button.disabled, button.textContent]), 50);
})"""


def test_a_form_that_waits_is_busy(page: Page) -> None:
    join(page, "somebody in a hurry")
    page.get_by_role("link", name="Projects", exact=True).click()
    page.get_by_label("Title").fill("A sundial")
    page.route("**/projects", lambda route: None)  # the answer takes its time
    state = page.get_by_role("button", name="Begin").evaluate(_STATE_AFTER_A_CLICK)
    assert state == ["true", True, "Working…"]


def test_a_project(window: Page, request: pytest.FixtureRequest) -> None:
    join(window, newcomer(request))
    window.get_by_role("link", name="Projects", exact=True).click()
    window.get_by_label("Title").fill("A sundial")
    window.get_by_role("button", name="Begin").click()
    active, archive = (window.get_by_role("region", name=each) for each in ("Active", "Archive"))
    expect(active).to_contain_text("A sundial")
    window.get_by_role("button", name="Archive A sundial").click()
    expect(archive).to_contain_text("A sundial")
    expect(active).to_contain_text("None yet.")
    window.get_by_role("button", name="Activate A sundial").click()
    expect(active).to_contain_text("A sundial")
    window.get_by_role("link", name="Delete A sundial").click()
    window.get_by_role("link", name="Keep it").click()
    expect(active).to_contain_text("A sundial")
    window.get_by_role("link", name="Delete A sundial").click()
    window.get_by_role("button", name="Delete it").click()
    expect(window.get_by_role("status").first).to_contain_text("“A sundial” is deleted.")
    window.get_by_role("link", name="Back to the projects").click()
    expect(active).to_contain_text("None yet.")


def test_a_bonus_for_some(window: Page) -> None:
    sign_in(window, "Mira Solberg")
    left = int(window.locator("#bonus-left").inner_text())
    row = window.get_by_role("row", name="Bruno Okafor")
    row.get_by_label("Bruno Okafor").uncheck()
    window.get_by_label("Points for each").fill("7")
    window.get_by_role("button", name="Give").click()
    expect(window.get_by_role("status")).to_contain_text("7 points each for 2 learners.")
    expect(window.locator("#bonus-left")).to_have_text(str(left - 14))


def test_the_nightly_job(window: Page) -> None:
    window.goto("/nightly")
    window.get_by_role("button", name="Run it now").click()
    report = window.get_by_text("Latest run")
    refresh = window.get_by_role("link", name="Refresh")
    while not report.count():
        if refresh.count():  # without JavaScript
            refresh.click()
    expect(report).to_be_visible()


def test_signing_out(window: Page) -> None:
    sign_in(window, "Dalia Haddad")
    window.get_by_role("button", name="Sign out").click()
    expect(window.get_by_role("heading", name="Who is learning today?")).to_be_visible()


def test_a_form_of_another_site_is_refused(page: Page, site: Stack) -> None:
    sign_in(page, "Dalia Haddad")
    # To the browser this is another site: it sends the cookies with same-site forms at most.
    elsewhere = site.app_url.replace("127.0.0.1", "localhost")
    page.route(f"{elsewhere}/**", lambda route: route.fulfill(body=FORM.format(site.app_url)))
    page.goto(f"{elsewhere}/trap")
    page.get_by_role("button", name="Win!").click()
    expect(page.get_by_text("This was sent from another site.")).to_be_visible()
    page.goto("/")
    expect(page.get_by_text("Dalia Haddad").first).to_be_visible()


FORM = """<!doctype html><title>Trap</title>
<form method="post" action="{}/sign-out"><button>Win!</button></form>"""
