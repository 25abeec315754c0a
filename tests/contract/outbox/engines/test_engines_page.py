"""The examples of engines in docs/outbox.md."""

from __future__ import annotations

import shlex
from typing import Any

import flask
import pytest
from google.cloud import ndb

import userlock
from tests.contract.outbox.test_outbox_page import PAGE
from userlock.contrib.flask import UserLock
from userlock.outbox import Outbox
from userlock.outbox.engines.cloudtasks import parse

SITE = PAGE.take("python", "cloudtasks://")
CALLERS = PAGE.take("python", "SharedSecret")
GCLOUD = PAGE.take("sh", "gcloud")
WORKER = PAGE.take("sh", "rq worker")
CONTRACT = PAGE.take("python", "EngineContract")


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.delenv("CLOUD_TASKS_EMULATOR_HOST", raising=False)
    names = {
        "app": flask.Flask("shop"),
        "ndb": ndb,
        "Outbox": Outbox,
        "UserLock": UserLock,
        "service": userlock.LockService.from_url("memory://"),
    }
    return SITE.run(names)


def test_the_site_lets_nobody_in_without_a_token(site: dict[str, Any]) -> None:
    client = site["app"].test_client()
    for path in ("/userlock/jobs", "/userlock/relay"):
        assert client.post(path).status_code == 401
        assert client.get(path).status_code == 405
    site["outbox"].close()


def test_another_caller(
    site: dict[str, Any], ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_SECRET", "correct-horse-battery-staple")
    app = flask.Flask("shop")
    CALLERS.run({**site, "app": app})
    headers = {"Authorization": "Bearer correct-horse-battery-staple"}
    answer = app.test_client().post("/userlock/relay", headers=headers)
    assert (answer.status_code, answer.get_json()["woken"]) == (200, 0)
    assert app.test_client().post("/userlock/relay").status_code == 401
    site["outbox"].close()


def test_the_commands_are_for_the_queue_of_the_site() -> None:
    url = "".join(line.strip(' "') for line in SITE.text.splitlines() if line[:5] == '    "')
    address = parse(url)
    queue, relay = (
        shlex.split(each) for each in GCLOUD.text.replace("\\\n", "").strip().splitlines()
    )
    assert queue[:5] == ["gcloud", "tasks", "queues", "create", address.queue]
    assert f"--location={address.location}" in queue
    options = dict(each.split("=", 1) for each in relay if each.startswith("--"))
    assert options["--oidc-service-account-email"] == address.service_account
    assert options["--oidc-token-audience"] == address.audience
    assert options["--uri"] == address.target.replace("/jobs", "/relay")


def test_the_worker_s_options_exist() -> None:
    variable, program, *arguments = shlex.split(WORKER.text.replace("\\\n", ""))
    assert (variable, program) == ("USERLOCK_OUTBOX=shop.jobs:outbox", "rq")
    from rq.cli.cli import main
    from rq.utils import import_worker_class

    known = {name for each in main.commands[arguments[0]].params for name in each.opts}
    assert {each for each in arguments if each.startswith("--")} <= known
    (worker,) = (each for each in arguments if each.startswith("userlock."))
    assert import_worker_class(worker).__module__ == "userlock.outbox.engines.rq"


Contract: Any = CONTRACT.run({"__name__": __name__})["TestMyEngine"]


class TestInline(Contract):
    """The contract, as the page shows it, kept by the threads of this process."""
