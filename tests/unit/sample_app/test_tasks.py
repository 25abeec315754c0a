"""Test the nightly job and the demo learners."""

from __future__ import annotations

from sample_app import catalogue
from sample_app.learning import nightly
from tests.unit.sample_app.conftest import Site

FINISH = "/api/learners/{}/exercises/primes/finish"


def test_the_job_awards_earned_badges_only_once(site: Site) -> None:
    site.client.post("/api/learners", json={"id": "bruno", "name": "Bruno"})
    site.client.post(FINISH.format("ada"))
    first = site.nightly()
    assert (first["learners"], first["badges_awarded"], first["skipped"]) == (2, 1, 0)
    assert site.learner("ada")["badges"] == ["first-step"]
    assert site.learner("bruno")["badges"] == []
    assert site.nightly()["badges_awarded"] == 0


def test_a_badge_for_a_streak_is_given_after_the_streak_has_ended(site: Site) -> None:
    for _ in range(3):
        site.client.post(FINISH.format("ada"))
        site.the_next_day()
    site.the_next_day(5)
    site.nightly()
    assert site.learner("ada")["badges"] == ["first-step", "steady"]


def test_a_locked_learner_is_skipped(site: Site) -> None:
    site.client.post("/api/learners", json={"id": "bruno", "name": "Bruno"})
    for each in ("ada", "bruno"):
        site.client.post(FINISH.format(each))
    with site.somebody_else_holds("ada"):
        report = site.nightly()
    assert (report["learners"], report["badges_awarded"], report["skipped"]) == (2, 1, 1)
    assert site.learner("ada")["badges"] == []
    assert site.learner("bruno")["badges"] == ["first-step"]


def test_one_run_at_a_time(site: Site) -> None:
    """The job waits for its owner's lock, and runs then."""
    site.client.post(FINISH.format("ada"))
    with site.somebody_else_holds(nightly.LOCK_ID):
        assert site.client.post("/tasks/award-badges").status_code == 202
        site.run_jobs()
        assert site.learner("ada")["badges"] == []
    site.relay()
    assert site.learner("ada")["badges"] == ["first-step"]


def test_an_empty_site_is_no_trouble(site: Site, datastore: object) -> None:
    getattr(datastore, "reset")()  # noqa: B009
    report = site.nightly()
    assert report["learners"] == 0
    assert report["longest_wait_ms"] == 0


def test_the_demo_learners_are_added_once(site: Site) -> None:
    first = site.client.post("/tasks/seed").get_json()
    # ada exists already, and is unchanged.
    assert first["created"] == ["bruno", "chen", "dalia"]
    assert first["coaches"] == ["coach:mira", "coach:tomas"]
    assert site.learner("ada")["points"] == 0
    assert site.client.post("/tasks/seed").get_json()["created"] == []


def test_the_demo_learners_have_a_past_that_adds_up(site: Site) -> None:
    site.client.post("/tasks/seed")
    chen = site.learner("chen")
    given = catalogue.EXERCISES
    exercises = sum(given[day % len(given)].points for day in range(9))
    assert chen["points"] == exercises + 2 * 2
    assert chen["seconds_watched"] == sum(
        part.seconds for part in catalogue.video("calendars").parts[:2]
    )
    assert (chen["streak"], chen["best_streak"], chen["exercises_done"]) == (0, 9, 9)
    assert site.learner("bruno")["streak"] == 2
