"""A worker of `make run` killed in the middle of a payment: one charge, one answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from sample_app.flows import new_key
from sample_app.stack import ports
from tests.system.load import call
from tests.system.test_run import Run
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

EQUAL_REQUESTS = 6


class Buyer:
    """A learner's browser that never sends a request again by itself."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self._cookie = ""
        self.post("/learners", name=name)

    def post(self, path: str, **form: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=60)
        try:
            headers = {
                "Cookie": self._cookie,
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            }
            connection.request("POST", path, urlencode(form), headers)
            response = connection.getresponse()
            body = response.read()
            cookie = response.getheader("Set-Cookie")
            if cookie is not None:
                self._cookie = cookie.partition(";")[0]
            is_json = "json" in (response.getheader("Content-Type") or "")
            return response.status, json.loads(body) if is_json else body
        finally:
            connection.close()

    def buy(self, key: str) -> tuple[int, Any]:
        return self.post("/payments", request=key, course="stars")

    def stage(self, mood: str, death: str = "") -> None:
        status, _ = self.post("/payments/settings", mood=mood, death=death)
        assert status == 303


@pytest.fixture(scope="module")
def provider_port() -> int:
    return ports.any_free()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, provider_port: int) -> Iterator[Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROVIDER_PORT", str(provider_port))
        run = Run(tmp_path_factory.mktemp("run"))
    yield run
    run.process.terminate()
    run.process.communicate()


def charges(provider_port: int, learner: str) -> list[dict[str, Any]]:
    keys = call(f"http://127.0.0.1:{provider_port}", "GET", "/").body["keys"]
    return [each for each in keys if each["reference"].startswith(f"{learner}/")]


@pytest.mark.parametrize(("death", "asked"), [("ordered", 1), ("asked", 2), ("charged", 2)])
def test_a_killed_worker(running: Run, provider_port: int, death: str, asked: int) -> None:
    buyer, key = Buyer(running.url, f"Killed {death}"), new_key()
    buyer.stage("charges", death)
    before = set(running.descendants())
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        buyer.buy(key)
    wait_until(lambda: bool(before - set(running.descendants())), seconds=10)
    status, answer = buyer.buy(key)
    assert (status, answer["replayed"]) == (201, False), answer
    assert answer["words"].endswith("in attempt 2.")
    (charge,) = charges(provider_port, f"killed-{death}")
    assert (charge["charge"] is not None, charge["asked"]) == (True, asked)
    again = buyer.buy(key)
    assert again == (201, {**answer, "replayed": True, "worker": again[1]["worker"]})


def test_equal_requests_at_once_whose_worker_is_killed(running: Run, provider_port: int) -> None:
    """The requests of the killed worker die with it; sent again, all have one answer."""
    buyer, key = Buyer(running.url, "Killed crowd"), new_key()
    buyer.stage("charges", "charged")

    def send_until_answered(_: int) -> tuple[int, Any]:
        for _ in range(EQUAL_REQUESTS):
            try:
                return buyer.buy(key)
            except (http.client.HTTPException, ConnectionError):
                continue
        raise AssertionError("killed again and again")

    with ThreadPoolExecutor(EQUAL_REQUESTS) as pool:
        found = list(pool.map(send_until_answered, range(EQUAL_REQUESTS)))
    assert {status for status, _ in found} == {201}
    assert len({answer["words"] for _, answer in found}) == 1
    assert [answer["replayed"] for _, answer in found].count(False) == 1
    (charge,) = charges(provider_port, "killed-crowd")
    assert charge["charge"] is not None


def test_a_provider_in_trouble(running: Run, provider_port: int) -> None:
    buyer, key = Buyer(running.url, "Troubled"), new_key()
    for mood, expected in (("is-down", 503), ("times-out", 503), ("loses-reply", 201)):
        buyer.stage(mood)
        status, answer = buyer.buy(key)
        assert status == expected, answer
    (charge,) = charges(provider_port, "troubled")
    assert charge["charge"] is not None
    assert charge["asked"] == 6, "twice in each attempt"


def test_two_requests_are_two_charges_if_nothing_else_tells_them_apart(
    running: Run, provider_port: int
) -> None:
    """The negative control: the provider alone, asked by two keys."""
    url, body = f"http://127.0.0.1:{provider_port}", {"cents": 1, "reference": "control/1"}
    assert call(url, "PUT", "/mood", {"mood": "charges"}).status == 200
    for key in (new_key(), new_key()):
        assert call(url, "POST", "/charges", body, key=key).status == 201
    assert len(charges(provider_port, "control")) == 2
