"""Test the nightly job and the demo learners."""

from __future__ import annotations

from sample_app.learning import nightly
from tests.unit.sample_app.conftest import Site

FINISH = "/api/learners/{}/exercises/primes/finish"


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
