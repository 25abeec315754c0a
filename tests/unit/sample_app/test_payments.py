"""Test paid courses: whatever the provider does and wherever the worker dies, one charge."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from sample_app.config import ConfigError, Settings
from sample_app.flows import new_key
from sample_app.payment_provider import client as payments
from sample_app.payment_provider.ledger import Ledger, Mood
from sample_app.payment_provider.server import Server
from tests.unit.sample_app.conftest import OpenSite, Site
from userlock_emulator import Emulator

KEY = "0ccb7813-e63d-4377-93c5-476cb93038f3"
PATH = "/api/learners/ada/courses/stars/orders"


@pytest.fixture
def shop(open_site: OpenSite, provider: Server, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(payments, "TIMEOUT_SECONDS", 0.2)
    return open_site(PAYMENT_PROVIDER=provider.url)


@pytest.fixture
def ada(shop: Site) -> FlaskClient:
    return shop.sign_in()


def buy(client: FlaskClient, key: str = KEY, course: str = "stars") -> TestResponse:
    form = {"request": key, "course": course}
    return client.post("/payments", data=form, headers={"Accept": "application/json"})


def charged(provider: Server) -> list[dict[str, Any]]:
    return [each for each in provider.ledger.as_json()["keys"] if each["charge"]]


def orders(client: FlaskClient) -> list[str]:
    """Return the states of the orders that the page shows, the latest first."""
    page = client.get("/payments", query_string={"request": KEY}).text
    rows = page.partition('id="orders">')[2].partition("</tbody>")[0].split("<tr>")[1:]
    return [row.split("<td>")[3].partition("<")[0] for row in rows]


def test_a_course_is_paid_for_once(shop: Site, ada: FlaskClient, provider: Server) -> None:
    first, again = buy(ada), buy(ada)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.get_json()["words"] == again.get_json()["words"]
    assert (first.get_json()["replayed"], again.get_json()["replayed"]) == (False, True)
    assert [(each["cents"], each["asked"]) for each in charged(provider)] == [(2900, 1)]
    assert orders(ada) == ["paid"]
    assert shop.run_jobs() == 1
    (mail,) = shop.client.get("/jobs.json").get_json()["mails"]
    assert mail["subject"] == "Your course “Stars by naked eye”"
    # The negative control: another request for another course is another charge.
    assert buy(ada, new_key(), "dials").status_code == 201
    assert len(charged(provider)) == 2


def test_a_declined_card_is_an_answer(ada: FlaskClient, provider: Server) -> None:
    provider.ledger.become(Mood.REFUSES)
    assert [buy(ada).status_code for _ in range(2)] == [402, 402]
    provider.ledger.become(Mood.CHARGES)
    again = buy(ada)
    assert (again.status_code, again.get_json()["replayed"]) == (402, True)
    assert (charged(provider), orders(ada)) == ([], ["declined"])
    assert buy(ada, new_key()).status_code == 201, "another request, another card"
    assert orders(ada) == ["paid", "declined"]


def test_a_lost_reply_is_asked_for_again(ada: FlaskClient, provider: Server) -> None:
    provider.ledger.become(Mood.LOSES_REPLY)
    assert buy(ada).status_code == 201
    assert [each["asked"] for each in charged(provider)] == [2]


def test_without_the_key_a_lost_reply_is_charged_twice(
    ada: FlaskClient, provider: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: a provider that does not know keys."""
    numbers, moods = itertools.count(), iter((Mood.LOSES_REPLY, Mood.CHARGES))
    charge = Ledger.charge

    def forgetful(ledger: Ledger, key: str, cents: int, reference: str) -> Any:
        ledger.mood = next(moods)
        return charge(ledger, f"{key}-{next(numbers)}", cents, reference)

    monkeypatch.setattr(Ledger, "charge", forgetful)
    assert buy(ada).status_code == 201
    assert len(charged(provider)) == 2


def test_a_site_without_a_provider_sells_nothing(site: Site) -> None:
    ada = site.sign_in()
    assert "Payments" not in ada.get("/").text
    for path in ("/payments", "/payments/state"):
        assert ada.get(path).status_code == 404
    assert buy(ada).status_code == 404
    answer = site.client.post(PATH, headers={"Idempotency-Key": KEY})
    assert (answer.status_code, answer.get_json()["error"]) == (404, "unknown_course")


# --- deaths -------------------------------------------------------------------------------------


class Killed(BaseException):
    """The end of a worker, within the process of the test."""


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []

    def kill(pid: int, number: int) -> None:
        assert pid == os.getpid()
        found.append(number)
        raise Killed

    monkeypatch.setattr(os, "kill", kill)
    return found


def choose(client: FlaskClient, death: str, mood: str = "charges") -> TestResponse:
    form = {"request": KEY, "mood": mood, "death": death}
    return client.post("/payments/settings", data=form)


def test_nobody_dies_elsewhere(ada: FlaskClient, killed: list[int]) -> None:
    page = ada.get("/payments", follow_redirects=True).text
    assert "is killed" not in page
    choose(ada, "charged")
    assert (buy(ada).status_code, killed) == (201, [])


@pytest.mark.parametrize(
    "config",
    [
        {"DEATHS": "1"},
        {"PAYMENT_PROVIDER": "http://payments.example"},
        {"PAYMENT_PROVIDER": "http://127.0.0.1:80@payments.example"},
        {"PROTECTION": "hope"},
        {"THINK_MS": "soon"},
        {"THINK_MS": "-1"},
    ],
)
def test_settings_that_are_wrong_or_for_demonstrations(config: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(config))):
        Settings.load(config, environ={})


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("outbox relay --once", "refused by the engine"),
        ("flows complete --older-than 1", "1 request completed"),
    ],
)
def test_commands_know_the_sites_requests(
    command: str, says: str, shop: Site, ada: FlaskClient, provider: Server, datastore: Emulator
) -> None:
    provider.ledger.become(Mood.IS_DOWN)
    assert ada.post(PATH, headers={"Idempotency-Key": KEY}).status_code == 503
    provider.ledger.become(Mood.CHARGES)
    settings = {
        "GOOGLE_CLOUD_PROJECT": Settings.load().project,
        "PAYMENT_PROVIDER": provider.url,
        "STORAGE": "/nowhere",
        "USERLOCK_APP": "sample_app.operate:app",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "userlock", *command.split(), "--store", "memory://"],
        env=os.environ | datastore.env | settings,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in ended.stderr  # a failed chore of the relay is logged
    assert says in ended.stdout
