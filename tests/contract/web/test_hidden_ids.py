"""No integration shows a lock id that is hidden: not in answers, logs, spans or pages."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.test_opentelemetry import Backend
from tests.contract.web.sites import SITES, Ask, site
from userlock.errors import CommitInDoubt, PutWithoutLock, StaleWriteError
from userlock.events import LISTENERS
from userlock.lock.record import joining
from userlock.stores import MemoryStore
from userlock.testing import make_claim

MARK = "zoe.marker+7@example.org"
FORMS = [{"show_ids": each, "id_key": "a secret"} for each in ("masked", "hashed", "plain")]
SERVICES: list[userlock.LockService] = []


pytestmark = pytest.mark.usefixtures("own_listeners")


def fail(user_id: str, how: str) -> str:
    """Do the work of one request, which fails."""
    key = ndb.Key("User", user_id, project="p", database="d")
    if how == "contended":
        with userlock.global_lock(user_id, wait_timeout=0.5):
            pass
    if how == "unavailable":
        SERVICES[0].store.go_down()  # type: ignore[attr-defined]
        with userlock.global_lock(user_id):
            pass
    if how == "stale":
        raise StaleWriteError(
            key=key, lock_id=user_id, read_version=1, found_version=2, read_at=None, put_at=None
        )
    if how == "doubt":
        raise CommitInDoubt(key=key, kind="User", lock_id=user_id, put_at=None)
    if how == "violation":
        raise PutWithoutLock(key=key, kind="User", lock_id=user_id, read_at=None, put_at=None)
    return "fine"


#: Ways to fail, with the status of the answer. The last one leaves no store.
HOW = {"contended": 503, "stale": 409, "doubt": 500, "violation": 500, "unavailable": 503}


@pytest.fixture
def service(store: MemoryStore, clock: Any) -> userlock.LockService:
    service = userlock.LockService(store, clock=clock, outage="fail")
    SERVICES[:] = [service]
    return service


def view(path: str) -> str:
    _, how, user_id = path.split("/")
    return fail(user_id, how)


@pytest.fixture(params=SITES)
def ask(
    request: pytest.FixtureRequest, service: userlock.LockService, ndb_client: ndb.Client
) -> Iterator[Ask]:
    with site(request.param, view, client=ndb_client, service=service) as ask:
        yield ask


def everything(caplog: pytest.LogCaptureFixture) -> str:
    """Return what a formatter could write, but for Django's own lines, which have the path."""
    ours = [record for record in caplog.records if not record.name.startswith("django")]
    formatter = logging.Formatter()
    return "\n".join(
        f"{formatter.format(each)} {json.dumps(each.__dict__, default=str)}" for each in ours
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["show_ids"])
def test_no_answer_log_or_span_shows_one(
    ask: Ask,
    service: userlock.LockService,
    store: MemoryStore,
    form: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The control: plain ones are shown."""
    userlock.configure(**form)  # type: ignore[arg-type]
    plain = form["show_ids"] == "plain"
    backend = Backend()
    LISTENERS.add(backend.listener(lock_id=True))
    service.acquire(MARK, request=f"POST /contended/{MARK}", lock_timeout=600)
    store.append(MARK, joining(make_claim(MARK, request=f"POST /contended/{MARK}").holder))
    answers = []
    with caplog.at_level(logging.DEBUG):
        for how, status in HOW.items():
            answers.append(ask(f"/{how}/{MARK}"))
            assert answers[-1].status == status
    shown = "".join(f"{each.headers}{each.text}" for each in answers)
    spans = "".join(f"{span.name}{dict(span.attributes or {})}" for span in backend.spans())
    for text in (shown, everything(caplog), spans):
        assert (MARK in text) is plain
