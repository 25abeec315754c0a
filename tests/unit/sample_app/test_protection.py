"""Test each protection in one race that always happens.

The first request is held between its get and its put. A second request for the
same learner runs meanwhile, from beginning to end.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from werkzeug.test import TestResponse

from sample_app import demonstration
from sample_app.config import Protection, Settings
from sample_app.protection import lock_service
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
    return lambda: site.app.test_client().post(FINISH, auth=("ada", ""))


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
