"""Test the nightly job by day: started from its page, and watched."""

from __future__ import annotations

import threading

import pytest

from sample_app import demonstration
from sample_app.learning import nightly
from tests.unit.sample_app.conftest import Site

FINISH = "/api/learners/ada/exercises/primes/finish"


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
