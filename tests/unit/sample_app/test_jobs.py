"""Test the site's mails: each is a job, staged with what it is about."""

from __future__ import annotations

from typing import Any

import pytest

from sample_app import catalogue
from sample_app.flows import new_key
from tests.unit.sample_app.conftest import Site, outbox_of

FINISH = "/api/learners/ada/exercises/primes/finish"
COURSE = min(catalogue.COURSES, key=lambda course: course.price)


def buy(site: Site) -> None:
    """Let ada pay for a certificate."""
    ada = site.sign_in()
    while site.learner()["points"] < COURSE.price:  # type: ignore[operator]
        site.client.post(FINISH)
    assert (
        ada.post("/certificates", data={"course": COURSE.slug, "request": new_key()}).status_code
        == 303
    )


def arrived(site: Site) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = site.client.get("/jobs.json").get_json()["mails"]
    return found


def post_office(site: Site, state: str) -> None:
    site.client.post("/jobs/post-office", data={"open": state})


def test_a_receipt_arrives_once(site: Site) -> None:
    buy(site)
    assert arrived(site) == []
    site.run_jobs()
    (mail,) = arrived(site)
    assert mail["to"] == "ada"
    assert COURSE.title in mail["subject"]
    assert site.relay() == 0, "the job is gone"
    assert COURSE.title in site.client.get("/learners/ada").text.split("Mails</h2>")[1]


def test_a_closed_post_office_loses_no_mail(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Mails are tried again until they are dead, and redriven when it is open."""
    post_office(site, "no")
    assert "The post office is closed:" in site.client.get("/jobs").text
    buy(site)
    site.run_jobs()
    outbox = outbox_of(site.app)
    for _ in range(3):
        with outbox.context():
            assert outbox.dead.count() == 0
        assert site.relay() >= 1  # a repeated message does no harm: see `attempts`
    with outbox.context():
        (letter,) = outbox.dead.list("receipt PostOfficeClosed")
    assert letter.attempts == 4
    assert letter.last_error.startswith("PostOfficeClosed: the post office is closed")
    assert arrived(site) == []
    post_office(site, "yes")
    assert site.relay() == 0, "a dead one waits for somebody"
    site.client.post("/jobs/redrive")
    site.run_jobs()
    assert len(arrived(site)) == 1
