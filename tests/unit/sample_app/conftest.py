"""Provide the site and the emulator in this process."""

from __future__ import annotations

import datetime
import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import flask
import pytest
from flask.testing import FlaskClient
from google.cloud import ndb
from werkzeug.datastructures import Authorization

import userlock
import userlock_emulator
from sample_app import create_app
from sample_app.payment_provider.server import LOOPBACK, Server
from tests.kinds import kinds_of
from userlock.outbox import Outbox
from userlock.outbox.engines.inline import InlineEngine
from userlock.stores.memory import MemoryStore
from userlock.testing import ManualClock

#: Who asks the API, if a test does not say so; the pages look at their cookie.
ADA: dict[str, str | None] = {"username": "ada", "password": ""}
NOW = datetime.datetime.fromisoformat("2024-03-14 09:30")


@pytest.fixture(scope="module")
def module_kinds() -> dict[str, type[ndb.Model]]:
    """Provide the kinds of the sample app, which imports its models when it is opened."""
    importlib.import_module("sample_app.app")
    return kinds_of("sample_app")


@dataclass
class Site:
    app: flask.Flask
    client: FlaskClient
    service: userlock.LockService
    clock: ManualClock
    time: list[datetime.datetime] = field(default_factory=lambda: [NOW])

    def the_next_day(self, days: int = 1) -> None:
        self.time[0] += datetime.timedelta(days=days)

    def later(self, seconds: float) -> None:
        self.time[0] += datetime.timedelta(seconds=seconds)

    def run_jobs(self) -> int:
        """Deliver the messages of the outbox; return how many."""
        engine = outbox_of(self.app).engines[0]
        assert isinstance(engine, InlineEngine)
        return engine.run_pending()

    def relay(self, seconds: float = 3600) -> int:
        """Let time pass, relay, and deliver the messages."""
        self.clock.sleep(seconds)
        outbox_of(self.app).relay()
        return self.run_jobs()

    def nightly(self) -> dict[str, Any]:
        assert self.client.post("/tasks/award-badges").status_code == 202
        self.run_jobs()
        document = self.client.get("/nightly.json").get_json()
        assert document["over"], document
        report: dict[str, Any] = document["report"]
        return report

    def sign_in(self, learner: str = "ada") -> FlaskClient:
        client = self.app.test_client()
        assert client.post("/sign-in", data={"learner": learner}).status_code == 303
        return client

    def learner(self, learner_id: str = "ada") -> dict[str, object]:
        answer = self.client.get(f"/api/learners/{learner_id}", auth=(learner_id, ""))
        assert answer.status_code == 200, answer.text
        told: dict[str, object] = answer.get_json()["learner"]
        return told

    @contextmanager
    def somebody_else_holds(self, learner_id: str) -> Iterator[None]:
        lease = self.service.acquire(learner_id, lock_timeout=3600, request="another request")
        try:
            yield
        finally:
            self.service.release(lease)


def outbox_of(app: flask.Flask) -> Outbox:
    found: Outbox = app.extensions["outbox"]
    return found


@pytest.fixture(scope="session")
def datastore() -> Iterator[userlock_emulator.Emulator]:
    server = userlock_emulator.start()
    yield server
    server.stop()


@pytest.fixture
def provider() -> Iterator[Server]:
    with Server((LOOPBACK, 0)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class OpenSite(Protocol):
    """Return a function that opens a site on the emulator, with one learner, ada."""

    def __call__(self, **config: object) -> Site: ...


@pytest.fixture
def open_site(datastore: userlock_emulator.Emulator, tmp_path: Path) -> OpenSite:
    datastore.reset()

    def open_(**config: object) -> Site:
        time = [NOW]
        clock = ManualClock()
        service = userlock.LockService(MemoryStore(clock=clock), clock=clock)
        app = create_app(
            {
                "TESTING": True,
                "DATASTORE_EMULATOR_HOST": datastore.host,
                "LOCK_SERVICE": service,
                "NOW": lambda: time[0],
                "OUTBOX": "inline://?threads=0",
                "STORAGE": str(tmp_path / "pictures"),
                "CLOCK": clock,
                **config,
            }
        )
        site = Site(app, app.test_client(), service, clock, time)
        site.client.environ_base["HTTP_AUTHORIZATION"] = str(Authorization("basic", ADA))
        answer = site.client.post("/api/learners", json={"id": "ada", "name": "Ada Lindqvist"})
        assert answer.status_code == 201, answer.text
        return site

    return open_


@pytest.fixture
def site(open_site: OpenSite) -> Site:
    return open_site()
