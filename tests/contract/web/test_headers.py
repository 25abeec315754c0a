"""Headers that set a request's priority: whoever sends them waits longer, and gains nothing."""

from __future__ import annotations

import flask
import pytest
from google.cloud import ndb
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.datastructures import Headers

import userlock
from userlock.contrib.flask import UserLock
from userlock.contrib.requests import BATCH_HEADERS, Surroundings
from userlock.lock.lease import Priority

_LOOK_ALIKES = [
    *("Priority", "X-Priority", "X-Userlock-Priority", "Userlock-Priority", "X-AppEngine-TaskName"),
    *("X_AppEngine_QueueName", "X-CloudTasks-QueueName-", "X-Forwarded-For", "Authorization"),
]
_names = st.sampled_from([*BATCH_HEADERS, *_LOOK_ALIKES]).flatmap(
    lambda name: st.sampled_from([name, name.lower(), name.upper()])
)
_values = st.sampled_from(["", "interactive", "batch", "u=0", "true", "false", "0", "default"])
headers = st.lists(st.tuples(_names, _values), max_size=6).map(Headers)

SURROUNDINGS = Surroundings(batch_prefixes=["/tasks/"])


@given(headers)
def test_no_header_makes_a_person_of_batch_work(sent: Headers) -> None:
    assert SURROUNDINGS.priority_of("/tasks/nightly", sent.__contains__) is Priority.BATCH


@given(headers)
def test_only_those_of_task_queues_make_batch_work_of_a_person(sent: Headers) -> None:
    known = any(name in sent for name in BATCH_HEADERS)
    found = SURROUNDINGS.priority_of("/answers", sent.__contains__)
    assert found is (Priority.BATCH if known else Priority.INTERACTIVE)


class Tally(userlock.UserModel):
    """Counted under its user's lock."""

    _lock_id_from_key = userlock.key_id
    count = ndb.IntegerProperty(default=0)


class Report(userlock.Model):
    """Written by the nightly job."""

    _write_policy = userlock.WritePolicy.BATCH_ONLY


@pytest.fixture
def app(ndb_client: ndb.Client, service: userlock.LockService) -> flask.Flask:
    app = flask.Flask(__name__)
    UserLock(app, client=ndb_client, service=service, inspector=lambda request: False)

    @app.post("/locked")
    def locked() -> str:
        with userlock.global_lock("ann", wait_timeout=0.5):
            return "fine"

    @app.post("/unlocked")
    def unlocked() -> str:
        Tally(id="ann").put()
        return "never"

    @app.post("/report")
    def report() -> str:
        Report(id="today").put()
        return "written"

    return app


@pytest.mark.parametrize("header", BATCH_HEADERS)
def test_with_one_nothing_is_let_pass_that_was_not(
    app: flask.Flask, service: userlock.LockService, header: str
) -> None:
    client = app.test_client()
    sent = {header: "true"}
    assert client.post("/locked", headers=sent).status_code == 200
    lease = service.acquire("ann")
    assert client.post("/locked", headers=sent).status_code == 503
    service.release(lease)
    assert client.post("/unlocked", headers=sent).status_code == 500
    assert client.get("/userlock/", headers=sent).status_code == 403


@pytest.mark.parametrize("header", BATCH_HEADERS)
def test_batch_only_believes_them(app: flask.Flask, header: str) -> None:
    """So that policy finds mistakes, and is no barrier: a view has to know by itself who asks."""
    client = app.test_client()
    assert client.post("/report").status_code == 500
    assert client.post("/report", headers={header: "true"}).status_code == 200
