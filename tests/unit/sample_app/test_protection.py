"""Test each protection in one race that always happens.

The first request is held between its get and its put. A second request for the
same learner runs meanwhile, from beginning to end.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from werkzeug.test import TestResponse

from sample_app import demonstration
from sample_app.config import Protection, Settings
from sample_app.protection import lock_service
from tests.unit.sample_app.conftest import OpenSite, Site

FINISH = "/api/learners/ada/exercises/primes/finish"


def site_with(open_site: OpenSite, protection: Protection) -> Site:
    if protection is Protection.LOCK:
        return open_site()  # whose waits take no time
    service = lock_service(Settings.load({"PROTECTION": protection}, environ={}))
    return open_site(PROTECTION=protection, LOCK_SERVICE=service)


@pytest.mark.parametrize(
    ("protection", "first", "second"),
    [
        # In this test the first request cannot continue, so the second times out.
        (Protection.LOCK, 200, 503),
        # The stale write is refused.
        (Protection.FENCING, 409, 200),
        # The negative control: two exercises of 15 points each, and an update is lost.
        (Protection.NONE, 200, 200),
    ],
)
def test_a_request_is_overtaken_by_another(
    open_site: OpenSite,
    monkeypatch: pytest.MonkeyPatch,
    protection: Protection,
    first: int,
    second: int,
) -> None:
    site = site_with(open_site, protection)
    overtaking: list[TestResponse] = []

    def finish() -> TestResponse:
        return site.app.test_client().post(FINISH, auth=("ada", ""))

    def overtaken() -> None:
        monkeypatch.setattr(demonstration, "think", lambda: None)
        with ThreadPoolExecutor(1) as pool:
            overtaking.append(pool.submit(finish).result())

    monkeypatch.setattr(demonstration, "think", overtaken)
    answer = finish()
    assert (answer.status_code, overtaking[0].status_code) == (first, second)
    if protection is Protection.FENCING:
        assert answer.get_json()["error"] == "StaleWriteError"
    assert site.learner()["points"] == 15
