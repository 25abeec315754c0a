"""Test the JSON endpoints."""

from __future__ import annotations

import pytest

from sample_app import catalogue
from sample_app.flows import new_key
from tests.unit.sample_app.conftest import Site

FINISH = "/api/learners/ada/exercises/primes/finish"
ANSWER = "/api/learners/ada/exercises/primes/answers"
RIGHT = [2, 1, 1]
BEGIN = "/api/learners/ada/videos/tides/begin"
CERTIFICATE = "/api/learners/ada/certificates/numbers"
ORDER = "/api/learners/ada/courses/stars/orders"
READ = "/api/learners/ada/videos/tides/parts/{}/finish"


def test_an_id_that_is_taken_is_refused_and_a_repeat_is_not(site: Site) -> None:
    site.client.post(FINISH)
    again = site.client.post("/api/learners", json={"id": "ada", "name": "Ada Lindqvist"})
    assert (again.status_code, again.get_json()["learner"]["points"]) == (201, 15)
    answer = site.client.post("/api/learners", json={"id": "ada", "name": "Another"})
    assert answer.status_code == 409
    assert answer.get_json()["error"] == "learner_exists"
    assert site.learner()["points"] == 15


@pytest.mark.parametrize("name", ["مرحبا بالعالم", "陳美", "👩‍🚀"])
def test_a_name_in_any_script_gets_an_id(site: Site, name: str) -> None:
    answer = site.client.post("/api/learners", json={"name": name})
    learner = answer.get_json()["learner"]
    assert (answer.status_code, learner["name"]) == (201, name)
    assert site.client.post("/api/learners", json={"name": name[::-1]}).status_code == 201


def test_all_right_answers_count_once_a_day(site: Site) -> None:
    answer = site.client.post(ANSWER, json={"answers": [2, 0, None]})
    assert answer.get_json()["right"] == [True, False, False]
    assert answer.get_json()["points_earned"] == 0
    assert site.client.post(ANSWER, json={"answers": RIGHT}).get_json()["points_earned"] == 15
    assert site.client.post(ANSWER, json={"answers": RIGHT}).get_json()["points_earned"] == 0
    assert site.learner()["points"] == 15
    site.the_next_day()
    assert site.client.post(ANSWER, json={"answers": RIGHT}).get_json()["points_earned"] == 15
    assert site.learner()["exercises_done"] == 2


def test_nobody_reads_that_fast(site: Site) -> None:
    least = catalogue.video("tides").parts[0].least_seconds
    site.client.post(BEGIN)
    site.later(least - 1)
    refused = site.client.post(READ.format(0))
    assert refused.status_code == 409
    assert refused.get_json()["error"] == "too_early"
    assert "1 more, please" in refused.get_json()["detail"]
    assert site.learner()["points"] == 0
    site.client.post(BEGIN)  # it began before: its time continues
    site.later(1)
    assert site.client.post(READ.format(0)).status_code == 200
    assert site.learner()["seconds_watched"] == least, "what it took, and no more"


def test_no_part_is_passed_over(site: Site) -> None:
    for begun, part in ((False, 0), (True, 1), (True, 99)):
        if begun:
            site.client.post(BEGIN)
        site.later(600)
        answer = site.client.post(READ.format(part))
        assert answer.status_code == 400
        assert answer.get_json()["detail"] == "part: finish the earlier parts first"


def test_a_certificate_costs_points_once(site: Site) -> None:
    for _ in range(5):
        site.client.post(FINISH)
    key = {"Idempotency-Key": new_key()}
    first = site.client.post(CERTIFICATE, headers=key)
    assert first.status_code == 201, first.text
    assert first.get_json()["learner"]["points"] == 15
    again = site.client.post(CERTIFICATE, headers=key)
    assert (again.status_code, again.data) == (201, first.data), "the same request"
    other = site.client.post(CERTIFICATE, headers={"Idempotency-Key": new_key()})
    assert other.status_code == 200, "another one, for the same certificate"
    assert other.get_json()["learner"]["points"] == 15
    assert site.client.post(CERTIFICATE).status_code == 400, "a request without a key"
    assert site.learner()["points"] == 15


def test_a_missing_entity_is_a_404(site: Site) -> None:
    for method, path, error in (
        ("GET", "/api/learners/nobody", "unknown_learner"),
        ("POST", "/api/learners/nobody/exercises/primes/finish", "unknown_learner"),
        ("POST", "/api/learners/ada/exercises/alchemy/finish", "unknown_exercise"),
        ("POST", "/api/learners/ada/videos/primes/begin", "unknown_video"),
        ("POST", "/api/learners/ada/certificates/nothing", "unknown_course"),
        ("GET", "/api/nothing", "not_found"),
    ):
        key = {"Idempotency-Key": new_key()}
        asks = ("nobody" if "/nobody" in path else "ada", "")
        answer = site.client.open(path, method=method, json={}, headers=key, auth=asks)
        assert answer.status_code == 404, answer.text
        assert answer.get_json()["error"] == error


def test_learners_act_for_themselves_alone(site: Site) -> None:
    """Refused before the lock and the idempotency key: while it is held they do not wait."""
    bruno = {"auth": ("bruno", "")}
    stranger = site.app.test_client()
    with site.somebody_else_holds("ada"):
        for path in (FINISH, ANSWER, BEGIN, READ.format(0), CERTIFICATE, ORDER):
            key = {"Idempotency-Key": "0123456789abcdef"}
            for asks, status in (({}, 401), (bruno, 403)):
                answer = stranger.post(path, json={}, headers=key, **asks)
                assert answer.status_code == status, path
    assert stranger.get("/api/learners/ada", **bruno).status_code == 403
    assert site.sign_in().post(FINISH).status_code == 200, "by the cookie of the pages"
    assert site.client.post(CERTIFICATE, headers=key).status_code == 409, "not a stored 403"


def test_bad_answers_are_a_400_with_a_reason(site: Site) -> None:
    for body in ({}, {"answers": [3, 0, 0]}, 7):
        answer = site.client.post(ANSWER, json=body)
        assert answer.status_code == 400
        assert answer.mimetype == "application/problem+json"
        told = answer.get_json()
        assert (told["title"], told["status"], told["error"]) == ("Bad Request", 400, "bad_input")
        assert told["detail"].startswith("answers: ")


def test_a_lock_that_stays_held_is_a_503(site: Site) -> None:
    with site.somebody_else_holds("ada"):
        answer = site.client.post(FINISH)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) >= 1
    assert site.learner()["points"] == 0
