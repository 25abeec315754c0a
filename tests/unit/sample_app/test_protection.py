"""What each protection does in one race that always happens.

The first request is held between its get and its put, and there a second one
for the same learner runs from beginning to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from werkzeug.test import TestResponse

from sample_app import create_app, learning
from sample_app.config import Protection, Settings
from sample_app.protection import lock_service
from sample_app.stack import ports
from tests.unit.sample_app.conftest import OpenSite, Site

FINISH = "/api/learners/ada/exercises/primes/finish"

Race = Callable[[Site, Callable[[], TestResponse]], tuple[TestResponse, TestResponse]]


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Race:
    """Runs the first request, overtaken by a second; gives both answers."""

    def run(site: Site, first: Callable[[], TestResponse]) -> tuple[TestResponse, TestResponse]:
        seconds: list[TestResponse] = []

        def overtaken() -> None:
            monkeypatch.setattr(learning, "think", lambda: None)
            with ThreadPoolExecutor(1) as pool:
                seconds.append(pool.submit(site.app.test_client().post, FINISH).result())

        monkeypatch.setattr(learning, "think", overtaken)
        answer = first()
        return answer, seconds[0]

    return run


@pytest.fixture
def unlocked(open_site: OpenSite) -> Callable[[Protection], Site]:
    def open_(protection: Protection) -> Site:
        service = lock_service(Settings.load({"PROTECTION": protection}, environ={}))
        return open_site(PROTECTION=protection, LOCK_SERVICE=service)

    return open_


def test_with_the_lock_the_second_one_waits(site: Site, race: Race) -> None:
    first, second = race(site, lambda: site.client.post(FINISH))
    # In this test the first one cannot go on, so the second waits in vain.
    assert (first.status_code, second.status_code) == (200, 503)
    assert site.learner()["points"] == 15


def test_with_fencing_the_stale_write_is_refused(
    unlocked: Callable[[Protection], Site], race: Race
) -> None:
    site = unlocked(Protection.FENCING)
    first, second = race(site, lambda: site.client.post(FINISH))
    assert (first.status_code, second.status_code) == (409, 200)
    assert first.get_json()["error"] == "StaleWriteError"
    assert site.learner()["points"] == 15


def test_people_are_told_in_words(unlocked: Callable[[Protection], Site], race: Race) -> None:
    site = unlocked(Protection.FENCING)
    form = {"exercise": "angles"}
    page, _ = race(site, lambda: site.client.post("/learners/ada/exercises", data=form))
    assert page.status_code == 409
    assert "Somebody was faster" in page.text
    shown = site.client.get("/learners/ada").text
    assert "Updates here are\n      <strong>not locked</strong>" in shown
    assert shown.count("<time ") == 1, "a refused exercise leaves no line in the log"


def test_without_protection_an_update_is_lost(
    unlocked: Callable[[Protection], Site], race: Race
) -> None:
    site = unlocked(Protection.NONE)
    first, second = race(site, lambda: site.client.post(FINISH))
    assert (first.status_code, second.status_code) == (200, 200)
    assert site.learner()["points"] == 15, "two exercises, 15 points each"


def test_a_datastore_that_does_not_answer_is_a_503(datastore: object) -> None:
    dead = f"127.0.0.1:{ports.any_free()}"
    site = create_app({"TESTING": True, "DATASTORE_EMULATOR_HOST": dead})
    started = time.monotonic()
    answer = site.test_client().get("/healthz")
    assert answer.status_code == 503
    assert answer.get_json()["error"] == "datastore_unavailable"
    assert time.monotonic() - started < 5
