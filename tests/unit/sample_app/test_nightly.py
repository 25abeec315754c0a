"""Test the nightly job by day: started from its page, and watched."""

from __future__ import annotations

import threading

import pytest

from sample_app import demonstration
from sample_app.learning import nightly
from sample_app.pages import nightly as nightly_page
from tests.unit.sample_app.conftest import Site

FINISH = "/api/learners/ada/exercises/primes/finish"


def shown_name(site: Site) -> str:
    """Return the name of the stored run, as the page's links have it."""
    with site.app.test_request_context():
        site.app.preprocess_request()
        return nightly_page._name(nightly.latest_run())


def wait(site: Site) -> None:
    site.app.extensions["background"].wait(30)


class Step:
    """Hold the job between its get and its put of a learner."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        monkeypatch.setattr(demonstration, "think", self._think)

    def _think(self) -> None:
        self.reached.set()
        assert self.go_on.wait(30)


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Step:
    return Step(monkeypatch)


def test_before_its_first_run(site: Site) -> None:
    assert "The job has not run yet." in site.client.get("/nightly").text
    assert site.client.get("/nightly.json").get_json() == {"over": True, "done": 0, "of": 0}


def test_from_its_button_to_its_report(site: Site) -> None:
    site.client.post(FINISH)
    answer = site.client.post("/nightly")
    assert answer.status_code == 303
    wait(site)
    shown = site.client.get(answer.location).text
    assert "Latest run" in shown
    assert "<dt>New badges</dt><dd>1</dd>" in shown
    assert site.learner()["badges"] == ["first-step"]


def test_it_is_watched_while_it_runs(site: Site, step: Step) -> None:
    answer = site.client.post("/nightly")
    assert step.reached.wait(30)
    shown = site.client.get(answer.location).text
    assert "0 of 1 learners done." in shown
    assert '<a href="">Refresh</a>' in shown, "for browsers without JavaScript"
    document = answer.location.replace("/nightly", "/nightly.json")
    assert site.client.get(document).get_json() == {"over": False, "done": 0, "of": 1}
    # A second press shows the run that is under way.
    assert site.client.post("/nightly").location == "/nightly"
    step.go_on.set()
    wait(site)
    assert site.client.get(document).get_json() == {"over": True, "done": 1, "of": 1}


def test_until_the_thread_has_begun_the_last_run_is_not_taken_for_this_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.client.post("/nightly")
    wait(site)
    may_begin = threading.Event()
    award_badges = nightly.award_badges

    def begin_late() -> object:
        assert may_begin.wait(30)
        return award_badges()

    monkeypatch.setattr(nightly, "award_badges", begin_late)
    site.later(1)
    location = site.client.post("/nightly").location
    assert "The job is starting." in site.client.get(location).text
    may_begin.set()
    wait(site)
    assert "Latest run" in site.client.get(location).text


def test_a_run_that_was_cut_short_is_said_to_be(site: Site, step: Step) -> None:
    """Its process was killed, and its lease has run out."""
    site.client.post("/nightly")
    assert step.reached.wait(30)
    site.service.break_lock(nightly.LOCK_ID)
    shown = site.client.get("/nightly").text
    assert "was interrupted after 0 of 1 learners" in shown
    assert "Run it now" in shown
    assert site.client.get("/nightly.json").get_json()["over"] is True
    step.go_on.set()
    wait(site)


@pytest.mark.parametrize("run_before", [True, False])
def test_no_parameter_starts_a_second_run(site: Site, step: Step, run_before: bool) -> None:
    """`after` is for display. It does not decide whether the job is running."""
    if run_before:
        step.go_on.set()
        site.client.post("/nightly")
        wait(site)
        step.go_on.clear()
        step.reached.clear()
        site.later(1)
    site.client.post("/nightly")
    assert step.reached.wait(30)
    began = []
    site.app.extensions["background"].start = lambda *_: began.append(1)
    names = ["never", shown_name(site), "", "x", "9" * 5000]
    for after in names:
        answer = site.client.post("/nightly", query_string={"after": after}, data={"after": after})
        assert answer.location == "/nightly"
    assert began == []
    step.go_on.set()
    wait(site)
    # The negative control: when none is running, the same request starts one.
    site.client.post("/nightly", query_string={"after": "never"})
    assert began == [1]


def test_a_run_that_has_stored_nothing_yet_is_running(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two presses at once start one job."""
    may_begin = threading.Event()
    begun = []

    def begin_late() -> None:
        begun.append(1)
        assert may_begin.wait(30)

    monkeypatch.setattr(nightly, "award_badges", begin_late)
    for _ in range(3):
        assert site.client.post("/nightly").status_code == 303
    may_begin.set()
    wait(site)
    assert begun == [1]


def test_a_run_of_another_process_is_left_alone(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """It took the lock after this process had looked."""
    with site.somebody_else_holds(nightly.LOCK_ID):
        assert site.client.post("/nightly").location == "/nightly"
        site.app.extensions["background"].start("nightly job", nightly_page._run)
        wait(site)
    assert "has failed" not in caplog.text
