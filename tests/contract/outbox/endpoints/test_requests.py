"""The outbox's endpoints in each integration: addresses, callers, bodies, runs, and the relay."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import flask
import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.cloud import ndb

import userlock
from tests.contract.outbox.endpoints.conftest import (
    APP,
    AUTHORIZED,
    JOBS,
    RELAY,
    SECRET,
    Anybody,
    Call,
    Shop,
    open_site,
)
from tests.contract.web.sites import SITES, Answer
from userlock.contrib.flask import UserLock
from userlock.contrib.inspector import Inspector
from userlock.contrib.outbox_endpoints import OutboxEndpoints
from userlock.contrib.request_scope import MOST_BODY_BYTES
from userlock.errors import CommitInDoubt
from userlock.outbox.authentication import AppEngineHeader, Refused, SharedSecret

Site = Callable[..., Call]


def is_bare(answer: Answer) -> bool:
    """Return whether a refusal tells its status and nothing else."""
    return answer.json.keys() == {"title", "status"} and len(answer.text) < 80


def test_other_methods(site: Site, shop: Shop) -> None:
    call, key = site(SharedSecret(SECRET)), shop.stage()
    methods = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS")
    for method, path, headers in itertools.product(methods, (JOBS, RELAY), ({}, AUTHORIZED)):
        answer = call(method, path, headers, key)
        assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    assert shop.ran == []


def test_other_addresses_are_the_app_s(site: Site, shop: Shop) -> None:
    call = site(Anybody())
    for path in (
        *("/userlock/jobs/", "/userlock//jobs", "/userlock/job", "/userlock/jobs/x", "/jobs"),
        *("/userlock", "/Userlock/Jobs", "/userlock/./jobs", "/userlock/jobs\0"),
        "/userlock/relay/",
    ):
        assert call("POST", path, {}, shop.stage()).text == APP
    assert call("GET", "/priority").text == "interactive False"
    forged = {"X-CloudTasks-QueueName": "jobs", **AUTHORIZED}
    assert call("GET", "/priority", forged).text == "batch False"
    assert shop.ran == []


@pytest.mark.parametrize("status", [200, 401, 403])
def test_callers(site: Site, shop: Shop, status: int) -> None:
    """200 is the control: the refused requests would run the job."""

    class Refuses:
        def check(self, header: object) -> None:
            raise Refused(status, "no")

    answer = site(Anybody() if status == 200 else Refuses())("POST", JOBS, {}, shop.stage())
    assert (answer.status, bool(shop.ran)) == (status, status == 200)
    assert (answer.headers.get("WWW-Authenticate") == "Bearer") is (status == 401)
    assert status == 200 or is_bare(answer)


def other_keys(client: ndb.Client) -> list[bytes]:
    with client.context():
        name = "0" * 32
        job = ndb.Key("UserLockOwner", "=ann", "UserLockJob", name)
        return [
            # Of another database, and some that the library does not make.
            *(
                ndb.Key(pairs=job.pairs(), **place).urlsafe()
                for place in (
                    *({"project": "evil"}, {"database": "evil"}, {"namespace": "no!"}),
                    {"namespace": "n" * 101},
                )
            ),
            *(
                ndb.Key("UserLockOwner", root, "UserLockJob", name).urlsafe()
                for root in (
                    "ann",
                    "=\x1b[31m",
                    "=\n",
                    "=" + "x" * 1401,
                    "#1",
                    "-1",
                    "__a__",
                    5,
                )
            ),
            *(
                ndb.Key("UserLockOwner", "=ann", "UserLockJob", wrong).urlsafe()
                for wrong in ("1", name + "0", "G" * 32, "__1__", name + "\n", 5)
            ),
            ndb.Key("User", "ann").urlsafe(),
            ndb.Key("UserLockJob", "1").urlsafe(),
            ndb.Key("UserLockOwner", "=ann").urlsafe(),
            ndb.Key("UserLockOwner", "=ann", "UserLockJobName", "1").urlsafe(),
            ndb.Key(pairs=[*job.pairs(), ("UserLockJob", "2")]).urlsafe(),
        ]


def test_bodies_that_are_no_key(site: Site, shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    call, key = site(SharedSecret(SECRET)), shop.stage()
    bodies = [
        *(b"", b"garbage", b"\xff\xfe", b"[]", b"null", key[:-4], key + key, b"\0", b"a" * 4000),
        *other_keys(shop.client),
    ]
    for body in bodies:
        answer = call("POST", JOBS, AUTHORIZED, body)
        assert (answer.status, is_bare(answer)) == (400, True), body
    assert shop.ran == []
    assert "Traceback" not in caplog.text
    for body in (b"", b"garbage", b"\xff" * 100_000, *bodies[-3:]):
        assert call("POST", RELAY, AUTHORIZED, body).status == 200, "it has no body to read"
    for owner in ("bob", "x" * 1500, "漢" * 466, "\ud800", " ", "😀" * 350):
        key = shop.stage(owner)
        assert len(key) < MOST_BODY_BYTES - 1000, "the longest keys fit"
        assert call("POST", JOBS, AUTHORIZED, key).status == 200
    assert len(shop.ran) == 6


def test_lengths_of_bodies(site: Site, shop: Shop) -> None:
    call = site(SharedSecret(SECRET))
    for length, status in (
        *((str(MOST_BODY_BYTES + 1), 413), ("9" * 18, 413), ("9" * 5000, 400), ("-1", 400)),
        *(("1e3", 400), ("", 400), ("0", 400), ("٣", 400)),
    ):
        answer = call("POST", JOBS, AUTHORIZED, shop.stage(), CONTENT_LENGTH=length)
        assert (answer.status, shop.ran) == (status, []), length
    assert call("POST", JOBS, {}, b"x" * 100_000).status == 401, "the caller comes first"
    assert call("POST", JOBS, AUTHORIZED, b"x" * 100_000).status == 413


@pytest.mark.parametrize("length", ["", str(MOST_BODY_BYTES)])
def test_a_body_that_never_ends_is_not_read(shop: Shop, length: str) -> None:
    read: list[int] = []

    def endless(size: int) -> bytes:
        read.append(size)
        return b"x" * size

    endpoints = OutboxEndpoints(shop.outbox, callers=[Anybody()])
    lengths = {"Content-Length": length}
    answer = endpoints.answer("POST", JOBS, lengths.get, endless, lambda _: shop.client.context())
    assert answer is not None
    assert answer.status in (400, 413)
    assert 0 <= sum(read) <= MOST_BODY_BYTES


# --- what runs ----------------------------------------------------------------------------------


def test_a_job_is_batch_work_with_the_integration_s_settings(site: Site, shop: Shop) -> None:
    """Whatever headers come with it; by the integration's service, with nothing configured."""
    seen: list[Any] = []

    @shop.outbox.job(name="look")
    def look(user_id: str) -> None:
        scope = userlock.current_scope()
        assert scope is not None
        seen.append((scope.settings.enforcement.value, scope.service is shop.service))

    call = site(SharedSecret(SECRET), enforcement="log")
    for more in ({}, {"X-AppEngine-QueueName": "a"}, {"Priority": "u=0"}):
        answer = call("POST", JOBS, {**AUTHORIZED, **more}, shop.stage())
        assert answer.json == {"outcome": "ran"}
        assert shop.ran.pop() == "ann batch True"
    assert call("POST", JOBS, AUTHORIZED, shop.stage(job="look")).status == 200
    assert seen == [("log", True)]
    assert userlock.current_scope() is None
    assert shop.service.holder("ann") is None


def test_outcomes_that_need_no_second_delivery(site: Site, shop: Shop) -> None:
    @shop.outbox.job(name="fail")
    def fail(user_id: str) -> None:
        raise ZeroDivisionError

    call, key, failing = site(Anybody()), shop.stage(), shop.stage("bob", job="fail")

    def outcome(key: bytes) -> Any:
        answer = call("POST", JOBS, {}, key)
        return answer.status, answer.json["outcome"]

    lease = shop.service.acquire("ann", request="POST /elsewhere")
    assert outcome(key) == (200, "busy")
    shop.service.release(lease)
    assert outcome(key) == (200, "ran")
    assert outcome(key) == (200, "nothing")
    assert outcome(failing) == (200, "ran")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ServiceUnavailable("a-detail"), 503),
        (CommitInDoubt(key=None, kind="a-detail", lock_id=None, put_at=None), 503),
        (RuntimeError("a-detail"), 500),
    ],
)
def test_errors_are_logged_and_tell_the_caller_nothing(
    site: Site,
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    status: int,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    call, key = site(Anybody()), shop.stage()
    for method in ("run", "relay"):
        monkeypatch.setattr(shop.outbox, method, fail)
    for path in (JOBS, RELAY):
        answer = call("POST", path, {}, key)
        assert (answer.status, is_bare(answer)) == (status, True)
    assert "a-detail" in caplog.text


# --- the relay ----------------------------------------------------------------------------------

_CRON = {"X-AppEngine-Cron": "true"}
#: Method, callers, headers of a request to the relay on App Engine; the status there, elsewhere.
RELAYS: dict[str, tuple[str, tuple[Any, ...], dict[str, str], int, int]] = {
    "secret": ("POST", (SharedSecret(SECRET),), AUTHORIZED, 200, 200),
    "no secret": ("POST", (SharedSecret(SECRET),), {}, 401, 401),
    "a secret's GET": ("GET", (SharedSecret(SECRET),), {**AUTHORIZED, **_CRON}, 405, 405),
    "cron": ("GET", (AppEngineHeader(),), _CRON, 200, 403),
    "cron, lower case": ("GET", (AppEngineHeader(),), {"x-appengine-cron": "true"}, 200, 403),
    "no cron": ("GET", (AppEngineHeader(),), {}, 403, 403),
    "two values": ("GET", (AppEngineHeader(),), {"X-AppEngine-Cron": "true, true"}, 403, 403),
    "Cloud Scheduler": ("GET", (AppEngineHeader(),), {"X-CloudScheduler": "true"}, 403, 403),
    "cron's HEAD": ("HEAD", (AppEngineHeader(),), _CRON, 405, 405),
    "both: cron": ("GET", (AppEngineHeader(), SharedSecret(SECRET)), _CRON, 200, 403),
    "both: secret": ("POST", (AppEngineHeader(), SharedSecret(SECRET)), AUTHORIZED, 200, 200),
    "both: GET": ("GET", (AppEngineHeader(), SharedSecret(SECRET)), AUTHORIZED, 403, 403),
}


@pytest.mark.parametrize("name", RELAYS)
def test_the_relay(site: Site, shop: Shop, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    method, callers, headers, there, elsewhere = RELAYS[name]
    call = site(*callers)
    monkeypatch.delenv("GAE_ENV", raising=False)
    assert call(method, RELAY, headers).status == elsewhere
    monkeypatch.setenv("GAE_ENV", "standard")
    shop.stage("ann")
    shop.stage("ben")
    answer = call(method, RELAY, headers)
    assert answer.status == there
    if there == 200:
        assert answer.json["woken"] == 2
    assert call("GET", JOBS, headers).status == 405


# --- beside the inspector, and the start --------------------------------------------------------


@pytest.mark.parametrize("operator", [False, True])
def test_the_inspector_is_not_in_the_way(shop: Shop, operator: bool) -> None:
    app = flask.Flask(__name__)
    inspector = Inspector(lambda request: operator)
    UserLock(app, inspector=inspector, **shop.options(SharedSecret(SECRET)))
    client = app.test_client()
    foreign = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    answer = client.post(JOBS, headers={**AUTHORIZED, **foreign}, data=shop.stage())
    assert (answer.status_code, len(shop.ran)) == (200, 1)
    assert client.post(JOBS, data=shop.stage()).status_code == 401
    # Pages are the inspector's, for operators only.
    assert client.get(JOBS, headers=AUTHORIZED).status_code in ((200, 404) if operator else (403,))
    assert client.get("/userlock/locks").status_code == (200 if operator else 403)
    assert len(shop.ran) == 1


def test_the_endpoints_can_be_elsewhere(shop: Shop) -> None:
    endpoints = OutboxEndpoints(shop.outbox, callers=[Anybody()], url_prefix="/internal/")
    options = {"client": shop.client, "service": shop.service, "outbox": endpoints}
    with open_site("flask", **options) as call:
        assert call("POST", JOBS, {}, shop.stage()).text == APP
        assert call("POST", "/internal/jobs", {}, shop.stage()).status == 200
        assert call("POST", "/internal/jobs", {}, shop.stage(), SCRIPT_NAME="/shop").status == 200
    with pytest.raises(TypeError, match="outbox must be"):
        OutboxEndpoints("inline://")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="slash"):
        OutboxEndpoints(shop.outbox, url_prefix="internal")


@pytest.mark.parametrize("name", SITES)
def test_several_outboxes(shop: Shop, name: str) -> None:
    """Each has addresses of its own, and runs its own jobs alone."""
    billing = Shop(shop.client, shop.service, name="billing")
    first = OutboxEndpoints(shop.outbox, callers=[Anybody()])
    second = OutboxEndpoints(billing.outbox, callers=[Anybody()], url_prefix="/billing")
    options = {"client": shop.client, "service": shop.service, "outbox": [first, second]}
    with open_site(name, **options) as call:
        assert call("POST", JOBS, {}, billing.stage()).status == 200
        assert call("POST", JOBS, {}, shop.stage()).status == 200
        assert (len(shop.ran), len(billing.ran)) == (1, 0)
        assert call("POST", "/billing/jobs", {}, billing.stage()).status == 200
        assert (len(shop.ran), len(billing.ran)) == (1, 2)
    same = [first, OutboxEndpoints(billing.outbox, callers=[Anybody()])]
    with pytest.raises(userlock.ConfigurationError, match="same addresses"):
        UserLock(outbox=same)


def test_of_several_outboxes_the_inspector_shows_the_first(shop: Shop) -> None:
    app, billing = flask.Flask(__name__), Shop(shop.client, shop.service, name="billing")
    options: Any = {"client": shop.client, "service": shop.service}
    second = OutboxEndpoints(billing.outbox, callers=[Anybody()], url_prefix="/billing")
    UserLock(app, outbox=[shop.outbox, second], inspector=lambda request: "olga", **options)
    shop.stage()
    found = app.test_client().get("/userlock/outbox.json").get_json()
    assert len(found["jobs"]) == 1


@pytest.mark.parametrize("name", SITES)
def test_an_engine_that_names_no_caller(shop: Shop, name: str) -> None:
    """It runs jobs in processes of its own: the app has no endpoints, and its own routes go on."""
    options = {"client": shop.client, "service": shop.service, "outbox": shop.outbox}
    with open_site(name, **options) as call:
        for path in (JOBS, RELAY):
            assert call("POST", path, {}, shop.stage()).text == APP
    assert shop.ran == []
    with pytest.raises(userlock.ConfigurationError, match="nobody may call"):
        OutboxEndpoints(shop.outbox, callers=[])
