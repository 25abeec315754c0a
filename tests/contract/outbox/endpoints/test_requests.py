"""Requests at the endpoints, in each integration, and their outcomes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import flask
import pytest
import werkzeug.test
from google.api_core.exceptions import ServiceUnavailable
from google.cloud import ndb

import userlock
from tests.contract.outbox.endpoints import issuer as issuers
from tests.contract.outbox.endpoints.conftest import (
    JOBS,
    RELAY,
    SECRET,
    Anybody,
    Shop,
    is_bare,
)
from tests.contract.outbox.endpoints.issuer import Issuer
from tests.contract.outbox.endpoints.sites import SITES, Call
from userlock.contrib.flask import UserLock
from userlock.contrib.inspector import Inspector
from userlock.contrib.outbox_endpoints import MOST_BODY_BYTES, OutboxEndpoints
from userlock.errors import CommitInDoubt
from userlock.outbox import Outbox
from userlock.outbox.authentication import AppEngineHeader, SharedSecret

# --- methods, addresses, bodies -----------------------------------------------------------------


@pytest.mark.parametrize("path", [JOBS, RELAY])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "post"])
def test_other_methods(site: Callable[..., Call], shop: Shop, method: str, path: str) -> None:
    call = site(SharedSecret(SECRET))
    for headers in ({}, {"Authorization": f"Bearer {SECRET}"}):
        answer = call(method, path, headers, shop.stage().encode())
        if method == "post":  # some servers and clients make it POST
            assert answer.status in (405, 401, 200)
            continue
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert shop.ran == [] or method == "post"


@pytest.mark.parametrize(
    "path",
    [
        *("/userlock/jobs/", "/userlock//jobs", "/userlock/job", "/userlock/jobs/x", "/jobs"),
        *("/userlock", "/Userlock/Jobs", "/userlock/./jobs", "/userlock/jobs%00"),
        "/userlock/relay/",
    ],
)
def test_other_addresses_are_the_app_s(site: Callable[..., Call], shop: Shop, path: str) -> None:
    call = site(Anybody())
    assert call("POST", path, {}, shop.stage().encode()).status == 418
    assert shop.ran == []


def test_the_site_itself_is_as_it_was(site: Callable[..., Call]) -> None:
    call = site(SharedSecret(SECRET))
    assert call("GET", "/priority").body == b"interactive False"
    forged = {"X-CloudTasks-QueueName": "jobs", "Authorization": f"Bearer {SECRET}"}
    assert call("GET", "/priority", forged).body == b"batch False"


def other_keys(client: ndb.Client) -> list[bytes]:
    with client.context():
        job = ndb.Key("UserLockOwner", "=ann", "UserLockJob", "1")
        return [
            ndb.Key("User", "ann").urlsafe(),
            ndb.Key("UserLockJob", "1").urlsafe(),
            ndb.Key("UserLockOwner", "=ann").urlsafe(),
            ndb.Key("UserLockOwner", "=ann", "UserLockJobName", "1").urlsafe(),
            ndb.Key(pairs=[*job.pairs(), ("UserLockJob", "2")]).urlsafe(),
        ]


def test_bodies_that_are_no_key(site: Callable[..., Call], shop: Shop) -> None:
    call = site(SharedSecret(SECRET))
    headers = {"Authorization": f"Bearer {SECRET}"}
    key = shop.stage().encode()
    bodies = [
        *(b"", b"garbage", b"\xff\xfe", b"[]", b"null", key[:-4], key + key, b"\0", b"a" * 4000),
        *other_keys(shop.client),
    ]
    for body in bodies:
        answer = call("POST", JOBS, headers, body)
        assert answer.status == 400, body
        assert is_bare(answer)
    assert shop.ran == []
    assert call("POST", JOBS, headers, key).status == 200
    assert len(shop.ran) == 1


@pytest.mark.parametrize("owner", ["x" * 1500, "漢" * 466, "\ud800", " ", "😀" * 350])
def test_the_longest_keys_fit(site: Callable[..., Call], shop: Shop, owner: str) -> None:
    key = shop.stage(owner)
    assert len(key) < MOST_BODY_BYTES - 1000
    assert site(Anybody())("POST", JOBS, {}, key.encode()).status == 200
    assert len(shop.ran) == 1


@pytest.mark.parametrize(
    ("length", "status"),
    [
        (str(MOST_BODY_BYTES + 1), 413),
        ("9" * 18, 413),
        ("9" * 5000, 400),
        ("-1", 400),
        ("1e3", 400),
        ("", 400),
        ("0", 400),
        ("٣", 400),
    ],
)
def test_lengths_of_bodies(site: Callable[..., Call], shop: Shop, length: str, status: int) -> None:
    call = site(SharedSecret(SECRET))
    headers = {"Authorization": f"Bearer {SECRET}"}
    answer = call("POST", JOBS, headers, shop.stage().encode(), CONTENT_LENGTH=length)
    assert (answer.status, shop.ran) == (status, [])
    assert call("POST", JOBS, {}, b"x" * 100_000).status == 401, "the caller comes first"
    assert call("POST", JOBS, headers, b"x" * 100_000).status == 413


def test_a_body_that_never_ends_is_not_read(site: Callable[..., Call], shop: Shop) -> None:
    class Endless:
        read_bytes = 0

        def read(self, size: int = -1) -> bytes:
            assert 0 <= size <= MOST_BODY_BYTES, "the whole body is asked for"
            self.read_bytes += size
            return b"x" * size

        def readline(self, size: int = -1) -> bytes:
            raise AssertionError("the body is read by lines")

    endpoints = OutboxEndpoints(shop.outbox, callers=[Anybody()])
    for length in ("", "10", str(MOST_BODY_BYTES), "1000000000"):
        body = Endless()
        lengths = {"Content-Length": length}
        answer = endpoints.answer(
            "POST", JOBS, lengths.get, body.read, lambda _: shop.client.context()
        )
        assert answer is not None
        assert answer.status in (400, 413)
        assert body.read_bytes <= MOST_BODY_BYTES


# --- what runs ----------------------------------------------------------------------------------


def test_a_job_s_request_is_batch_work(site: Callable[..., Call], shop: Shop) -> None:
    """Whatever headers come with it; by the integration's service, with nothing configured."""
    call = site(SharedSecret(SECRET))
    for more in (
        {},
        {"X-AppEngine-QueueName": "a"},
        {"Priority": "u=0"},
        {"X-CloudScheduler": "1"},
    ):
        shop.ran.clear()
        headers = {"Authorization": f"Bearer {SECRET}", **more}
        answer = call("POST", JOBS, headers, shop.stage().encode())
        assert json.loads(answer.body) == {"outcome": "ran"}
        assert shop.ran == ["ann batch True job note"]
    assert userlock.current_scope() is None
    assert shop.service.holder("ann") is None


def test_a_job_has_the_integration_s_settings(site: Callable[..., Call], shop: Shop) -> None:
    seen: list[Any] = []

    def look(user_id: str) -> None:
        scope = userlock.current_scope()
        assert scope is not None
        seen.append((scope.settings.enforcement.value, scope.service is shop.service))

    job = shop.outbox.job(name="look")(look)
    call = site(Anybody(), enforcement="log")
    with shop.client.context():
        key = job.stage_now("ann").key
    assert call("POST", JOBS, {}, key.encode()).status == 200
    assert seen == [("log", True)]


def test_a_busy_owner_and_a_job_that_is_gone_need_no_second_delivery(
    site: Callable[..., Call], shop: Shop
) -> None:
    call = site(Anybody())
    key = shop.stage().encode()
    lease = shop.service.acquire("ann", request="POST /elsewhere")
    answer = call("POST", JOBS, {}, key)
    assert (answer.status, json.loads(answer.body)) == (200, {"outcome": "busy"})
    shop.service.release(lease)
    assert json.loads(call("POST", JOBS, {}, key).body) == {"outcome": "ran"}
    answer = call("POST", JOBS, {}, key)
    assert (answer.status, json.loads(answer.body)) == (200, {"outcome": "nothing"})


def test_a_job_that_fails_needs_no_second_delivery(site: Callable[..., Call], shop: Shop) -> None:
    def fail(user_id: str) -> None:
        raise ZeroDivisionError("the-secret-of-the-job")

    job = shop.outbox.job(name="fail")(fail)
    with shop.client.context():
        key = job.stage_now("ann").key
    answer = site(Anybody())("POST", JOBS, {}, key.encode())
    assert (answer.status, json.loads(answer.body)) == (200, {"outcome": "ran"})


@pytest.mark.parametrize(
    "error",
    [
        ServiceUnavailable("the-address-of-datastore"),
        CommitInDoubt(key=None, kind="the-address-of-datastore", lock_id=None, put_at=None),
    ],
)
def test_datastore_does_not_answer(
    site: Callable[..., Call],
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def fail(key: str) -> None:
        raise error

    call, key = site(Anybody()), shop.stage().encode()
    with monkeypatch.context() as patched:
        patched.setattr(shop.outbox, "run", fail)
        patched.setattr(shop.outbox, "relay", lambda seconds: fail(""))
        for path in (JOBS, RELAY):
            answer = call("POST", path, {}, key)
            assert answer.status == 503
            assert is_bare(answer)
    assert "the-address-of-datastore" in caplog.text
    assert call("POST", JOBS, {}, key).status == 200


def test_a_bug_is_logged_and_tells_the_caller_nothing(
    site: Callable[..., Call],
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(key: str) -> None:
        raise RuntimeError("a-detail")

    call, key = site(Anybody()), shop.stage().encode()
    monkeypatch.setattr(shop.outbox, "run", fail)
    answer = call("POST", JOBS, {}, key)
    assert answer.status == 500
    assert is_bare(answer)
    assert "a-detail" in caplog.text


# --- the relay ----------------------------------------------------------------------------------


def test_the_relay_asks_for_jobs_that_are_due(site: Callable[..., Call], shop: Shop) -> None:
    call = site(SharedSecret(SECRET))
    shop.stage("ann")
    shop.stage("ben")
    assert call("POST", RELAY).status == 401
    answer = call("POST", RELAY, {"Authorization": f"Bearer {SECRET}"})
    assert answer.status == 200
    assert json.loads(answer.body)["woken"] == 2


#: Headers of a GET of the relay, with its status on App Engine. Elsewhere none is let in.
GETS: dict[str, tuple[dict[str, str], int]] = {
    "cron": ({"X-AppEngine-Cron": "true"}, 200),
    "cron, lower case": ({"x-appengine-cron": "true"}, 200),
    "nothing": ({}, 403),
    "empty": ({"X-AppEngine-Cron": ""}, 403),
    "another value": ({"X-AppEngine-Cron": "false"}, 403),
    "two values": ({"X-AppEngine-Cron": "true, true"}, 403),
    "Cloud Scheduler": ({"X-CloudScheduler": "true"}, 403),
    "a secret that nobody gave": ({"Authorization": f"Bearer {SECRET}"}, 403),
}


@pytest.mark.parametrize("name", GETS)
def test_app_engine_s_cron_sends_get(
    site: Callable[..., Call], shop: Shop, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    headers, status = GETS[name]
    call = site(AppEngineHeader())
    shop.stage()
    answer = call("GET", RELAY, headers)
    assert (answer.status, is_bare(answer)) == (403, True)
    monkeypatch.setenv("GAE_ENV", "standard")
    answer = call("GET", RELAY, headers)
    assert answer.status == status
    if status == 200:
        assert json.loads(answer.body)["woken"] == 1
    for method, path in (("GET", JOBS), ("HEAD", RELAY), ("PUT", RELAY)):
        assert call(method, path, headers).status == 405


def test_no_other_caller_sends_get(
    site: Callable[..., Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAE_ENV", "standard")
    secret = {"Authorization": f"Bearer {SECRET}"}
    call = site(SharedSecret(SECRET))
    answer = call("GET", RELAY, {**secret, "X-AppEngine-Cron": "true"})
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert call("POST", RELAY, secret).status == 200


def test_beside_cron_others_send_post(
    site: Callable[..., Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAE_ENV", "standard")
    secret = {"Authorization": f"Bearer {SECRET}"}
    call = site(AppEngineHeader(), SharedSecret(SECRET))
    assert call("GET", RELAY, secret).status == 403
    assert call("POST", RELAY, secret).status == 200
    assert call("GET", RELAY, {"X-AppEngine-Cron": "true"}).status == 200


# --- beside the inspector, and the start --------------------------------------------------------


@pytest.mark.parametrize("operator", [False, True])
def test_the_inspector_is_not_in_the_way(shop: Shop, operator: bool) -> None:
    app = flask.Flask(__name__)
    inspector = Inspector(lambda request: operator)
    UserLock(app, inspector=inspector, **shop.options(SharedSecret(SECRET)))
    client = app.test_client()
    headers = {"Authorization": f"Bearer {SECRET}"}
    foreign = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    answer = client.post(JOBS, headers={**headers, **foreign}, data=shop.stage())
    assert (answer.status_code, len(shop.ran)) == (200, 1)
    assert client.post(JOBS, data=shop.stage()).status_code == 401
    # Pages are the inspector's, for operators only.
    assert client.get(JOBS, headers=headers).status_code in ((200, 404) if operator else (403,))
    assert client.get("/userlock/locks").status_code == (200 if operator else 403)
    assert len(shop.ran) == 1


def test_the_endpoints_can_be_elsewhere(shop: Shop) -> None:
    app = flask.Flask(__name__)
    endpoints = OutboxEndpoints(shop.outbox, callers=[Anybody()], url_prefix="/internal/")
    UserLock(app, client=shop.client, service=shop.service, outbox=endpoints)
    client = app.test_client()
    assert client.post(JOBS, data=shop.stage()).status_code == 404
    assert client.post("/internal/jobs", data=shop.stage()).status_code == 200
    mounted = werkzeug.test.Client(app)
    place = {"SCRIPT_NAME": "/shop"}
    answer = mounted.post("/internal/jobs", data=shop.stage(), environ_overrides=place)
    assert answer.status_code == 200
    answer.close()


@pytest.mark.parametrize("name", list(SITES))
def test_an_engine_that_names_no_caller(shop: Shop, name: str) -> None:
    """It runs jobs in processes of its own: the app has no endpoints, and its own routes go on."""
    options = {"client": shop.client, "service": shop.service, "outbox": shop.outbox}
    with SITES[name](**options) as call:
        for path in (JOBS, RELAY):
            answer = call("POST", path, {}, shop.stage().encode())
            assert answer.status in (404, 418), "the app's own answer"
    assert shop.ran == []
    with pytest.raises(userlock.ConfigurationError, match="nobody may call"):
        OutboxEndpoints(shop.outbox, callers=[])


def test_the_queue_s_url_names_the_caller(shop: Shop, issuer: Issuer) -> None:
    target = f"target={issuers.AUDIENCE}&service_account={issuers.ACCOUNT}"
    outbox = Outbox(f"cloudtasks://shop/here/jobs?{target}", tiers={"slow": "inline://?threads=0"})
    assert f"{outbox.engines[0].caller!r}".startswith("OidcToken(audience=('https://shop.exa")  # type: ignore[attr-defined]
    app = flask.Flask(__name__)
    UserLock(app, client=shop.client, service=shop.service, outbox=outbox)
    client = app.test_client()
    assert client.post(JOBS, data=shop.stage()).status_code == 401
    assert client.get(RELAY).status_code == 405
    outbox.close()
