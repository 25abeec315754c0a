"""Test each protection in one race that always happens.

The first request is held between its get and its put. A second request for the
same learner runs meanwhile, from beginning to end.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from werkzeug.test import TestResponse

from sample_app import create_app, demonstration
from sample_app.config import Protection, Settings
from sample_app.models import Project
from sample_app.protection import lock_service
from sample_app.stack import ports
from tests.unit.sample_app.conftest import OpenSite, Site

FINISH = "/api/learners/ada/exercises/primes/finish"


Request = Callable[[], TestResponse]
Race = Callable[[Request, Request], tuple[TestResponse, TestResponse]]


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Race:
    """Run the first request, overtaken by the second. Return both answers."""

    def run(first: Request, second: Request) -> tuple[TestResponse, TestResponse]:
        seconds: list[TestResponse] = []

        def overtaken() -> None:
            monkeypatch.setattr(demonstration, "think", lambda: None)
            with ThreadPoolExecutor(1) as pool:
                seconds.append(pool.submit(second).result())

        monkeypatch.setattr(demonstration, "think", overtaken)
        answer = first()
        return answer, seconds[0]

    return run


def finish(site: Site) -> Request:
    return lambda: site.app.test_client().post(FINISH)


@pytest.fixture
def unlocked(open_site: OpenSite) -> Callable[[Protection], Site]:
    def open_(protection: Protection) -> Site:
        service = lock_service(Settings.load({"PROTECTION": protection}, environ={}))
        return open_site(PROTECTION=protection, LOCK_SERVICE=service)

    return open_


def test_with_the_lock_the_second_one_waits(site: Site, race: Race) -> None:
    first, second = race(finish(site), finish(site))
    # In this test the first request cannot continue, so the second times out.
    assert (first.status_code, second.status_code) == (200, 503)
    assert site.learner()["points"] == 15


def test_with_fencing_the_stale_write_is_refused(
    unlocked: Callable[[Protection], Site], race: Race
) -> None:
    site = unlocked(Protection.FENCING)
    first, second = race(finish(site), finish(site))
    assert (first.status_code, second.status_code) == (409, 200)
    assert first.get_json()["error"] == "StaleWriteError"
    assert site.learner()["points"] == 15


def test_without_protection_an_update_is_lost(
    unlocked: Callable[[Protection], Site], race: Race
) -> None:
    site = unlocked(Protection.NONE)
    first, second = race(finish(site), finish(site))
    assert (first.status_code, second.status_code) == (200, 200)
    assert site.learner()["points"] == 15, "two exercises, 15 points each"


def projects(site: Site) -> tuple[Request, Request]:
    """Return the forms for a project of one title, from two windows."""
    first, second = (
        functools.partial(site.sign_in().post, "/projects", data={"title": title})
        for title in ("A sundial", "A SUNDIAL")
    )
    return first, second


def active(site: Site) -> int:
    return site.sign_in().get("/projects").text.count('value="archived"')


@pytest.mark.parametrize("protection", [Protection.NONE, Protection.FENCING])
def test_a_title_is_unique_without_the_lock(
    unlocked: Callable[[Protection], Site], race: Race, protection: Protection
) -> None:
    site = unlocked(protection)
    first, second = race(*projects(site))
    assert (first.status_code, second.status_code) == (303, 303)
    assert active(site) == 1


def test_without_the_constraint_there_are_two(
    unlocked: Callable[[Protection], Site], race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control."""
    monkeypatch.setattr(Project, "_userlock_constraints", ())
    site = unlocked(Protection.NONE)
    race(*projects(site))
    assert active(site) == 2


def test_a_datastore_that_does_not_answer_is_a_503(datastore: object) -> None:
    dead = f"127.0.0.1:{ports.any_free()}"
    site = create_app({"TESTING": True, "DATASTORE_EMULATOR_HOST": dead})
    started = time.monotonic()
    answer = site.test_client().get("/healthz")
    assert answer.status_code == 503
    assert answer.get_json()["error"] == "datastore_unavailable"
    assert time.monotonic() - started < 5
