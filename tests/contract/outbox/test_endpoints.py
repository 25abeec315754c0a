"""The outbox's endpoints, in each integration: who is let in, and what comes of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import flask
import pytest
import werkzeug.test
from django.core.exceptions import ImproperlyConfigured
from google.cloud import ndb

import emulator
import userlock
from tests.contract.outbox import issuer as issuers
from tests.contract.outbox.issuer import Issuer, token
from tests.contract.outbox.sites import SITES, Answer, Call
from userlock.contrib.flask import UserLock
from userlock.contrib.inspector import Inspector
from userlock.contrib.outbox_endpoints import MOST_BODY_BYTES, OutboxEndpoints
from userlock.outbox import Outbox
from userlock.outbox.authentication import AppEngineHeader, Caller, OidcToken, SharedSecret
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

SECRET = "correct-horse-battery-staple"
JOBS, RELAY = "/userlock/jobs", "/userlock/relay"


class Anybody:
    """Lets everybody in: the negative control."""

    def check(self, header: Callable[[str], str | None]) -> None:
        pass


class Shop:
    """An outbox with a job that notes its runs."""

    def __init__(self, client: ndb.Client, service: userlock.LockService) -> None:
        self.client = client
        self.service = service
        self.outbox = Outbox("inline://?threads=0")
        self.ran: list[str] = []
        self.outbox.job(name="note")(self.note)

    def note(self, user_id: str) -> None:
        scope = userlock.current_scope()
        assert scope is not None
        self.ran.append(f"{user_id} {scope.priority.value} {scope.batch_work} {scope.request}")

    def stage(self, user_id: str = "ann") -> str:
        with self.client.context():
            return self.outbox.jobs["note"].stage_now(user_id).key

    def options(self, *callers: Caller) -> dict[str, Any]:
        endpoints = OutboxEndpoints(self.outbox, callers=callers)
        return {"client": self.client, "service": self.service, "outbox": endpoints}


@pytest.fixture
def shop(ndb_client: ndb.Client, store: MemoryStore, clock: ManualClock) -> Shop:
    return Shop(ndb_client, userlock.LockService(store, clock=clock))


@pytest.fixture(scope="module")
def running_issuer() -> Iterator[Issuer]:
    with issuers.issuer() as found:
        yield found


@pytest.fixture
def issuer(running_issuer: Issuer) -> Issuer:
    running_issuer.keys, running_issuer.status = [issuers.KEY_ID], 200
    running_issuer.fetched = 0
    return running_issuer


@pytest.fixture(params=list(SITES))
def site(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Callable[..., Call]]:
    """Return a function that starts the site for some callers, in each integration."""
    opened = []

    def start(*callers: Caller, **options: Any) -> Call:
        context = SITES[request.param](**shop.options(*callers), **options)
        opened.append(context)
        return context.__enter__()

    yield start
    for context in opened:
        context.__exit__(None, None, None)


def oidc(issuer: Issuer, form: str = "certificates") -> OidcToken:
    return OidcToken(
        audience=issuers.AUDIENCE,
        service_account=issuers.ACCOUNT,
        certs_url=issuer.certs_url(form),
    )


def is_bare(answer: Answer) -> bool:
    """Return whether a refusal tells its status and nothing else."""
    return json.loads(answer.body).keys() == {"title", "status"} and len(answer.body) < 80


# --- credentials --------------------------------------------------------------------------------

_VALID = token()
_HEAD, _BODY, _SIGNATURE = _VALID.split(".")
_OTHER_BODY = issuers.coded(issuers.claims(sub="2"))

#: Values of Authorization, with the status; 200 for the account's tokens.
TOKENS: dict[str, tuple[str | None, int]] = {
    "none": (None, 401),
    "empty": ("", 401),
    "no token": ("Bearer", 401),
    "a space": ("Bearer ", 401),
    "Basic": ("Basic YTpi", 401),
    "no scheme": (_VALID, 401),
    "garbage": ("Bearer garbage", 401),
    "dots": ("Bearer ..", 401),
    "not base64": ("Bearer a.b.c", 401),
    "nested": (f"Bearer {issuers.coded(b'[' * 3000)}.{_BODY}.{_SIGNATURE}", 401),
    "a list": (f"Bearer {issuers.coded(b'[]')}.{_BODY}.{_SIGNATURE}", 401),
    "long": (f"Bearer {'a' * 20_000}", 401),
    "two": (f"Bearer {_VALID},Bearer {_VALID}", 401),
    "valid": (f"Bearer {_VALID}", 200),
    "valid, lower case": (f"bearer {_VALID}", 200),
    "among several audiences": (f"Bearer {token(aud=[issuers.AUDIENCE])}", 401),
    "other audience": (f"Bearer {token(aud='https://other.example/')}", 401),
    "part of the audience": (f"Bearer {token(aud='https://shop.example/')}", 401),
    "no audience": (f"Bearer {token(aud=None)}", 401),
    "other account": (f"Bearer {token(email='eve@shop.iam.gserviceaccount.com')}", 403),
    "account in upper case": (f"Bearer {token(email=issuers.ACCOUNT.upper())}", 403),
    "no account": (f"Bearer {token(email=None)}", 403),
    "account not verified": (f"Bearer {token(email_verified=False)}", 403),
    "account verified by a text": (f"Bearer {token(email_verified='false')}", 403),
    "expired": (f"Bearer {token(iat=1_700_000_000, exp=1_700_003_600)}", 401),
    "never expires": (f"Bearer {token(exp=None)}", 401),
    "expires never": (f"Bearer {token(exp='never')}", 401),
    "of tomorrow": (f"Bearer {token(iat=4_000_000_000, exp=4_000_003_600)}", 401),
    "other issuer": (f"Bearer {token(iss='https://accounts.example')}", 401),
    "no issuer": (f"Bearer {token(iss=None)}", 401),
    "unsigned": (f"Bearer {token(header={'alg': 'none'})}", 401),
    "no algorithm": (f"Bearer {token(header={'alg': None})}", 401),
    "signed with the public key": (f"Bearer {token(header={'alg': 'HS256'})}", 401),
    "said to be ES256": (f"Bearer {token(header={'alg': 'ES256'})}", 401),
    "other key": (f"Bearer {token('key-2', header={'kid': issuers.KEY_ID})}", 401),
    "unknown key": (f"Bearer {token('key-2')}", 401),
    "names no key": (f"Bearer {token(header={'kid': None})}", 401),
    "names a list of keys": (f"Bearer {token(header={'kid': [issuers.KEY_ID]})}", 401),
    "no signature": (f"Bearer {_HEAD}.{_BODY}.", 401),
    "cut": (f"Bearer {_VALID[:-9]}", 401),
    "claims of another": (
        f"Bearer {_HEAD}.{issuers.coded(issuers.claims(sub='2'))}.{_SIGNATURE}",
        401,
    ),
    "the secret": (f"Bearer {SECRET}", 401),
}


@pytest.mark.parametrize("form", ["certificates", "keys"])
def test_each_token(site: Callable[..., Call], shop: Shop, issuer: Issuer, form: str) -> None:
    call = site(oidc(issuer, form))
    for name, (value, status) in TOKENS.items():
        key = shop.stage()
        shop.ran.clear()
        answer = call("POST", JOBS, {} if value is None else {"Authorization": value}, key.encode())
        assert answer.status == status, name
        assert bool(shop.ran) is (status == 200), name
        assert (answer.headers.get("WWW-Authenticate") == "Bearer") is (status == 401), name
        assert status == 200 or is_bare(answer), name


def test_what_is_refused_would_run(site: Callable[..., Call], shop: Shop) -> None:
    """The negative control: without the check, each of these requests runs the job."""
    call = site(Anybody())
    for value, _ in TOKENS.values():
        key = shop.stage()
        shop.ran.clear()
        answer = call("POST", JOBS, {} if value is None else {"Authorization": value}, key.encode())
        assert (answer.status, len(shop.ran)) == (200, 1)


@pytest.mark.parametrize("platform", ["", "GAE_ENV", "GAE_APPLICATION"])
def test_app_engine_s_headers_count_there_alone(
    site: Callable[..., Call], shop: Shop, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GAE_ENV", "GAE_APPLICATION"):
        monkeypatch.delenv(name, raising=False)
    if platform:
        monkeypatch.setenv(platform, "standard")
    call = site(AppEngineHeader())
    proofs = {"X-AppEngine-QueueName": "jobs", "X-AppEngine-Cron": "true"}
    others = {"X-CloudTasks-QueueName": "jobs", "X-CloudScheduler": "true", "X-AppEngine": "1"}
    sent = {**proofs, **others, "Authorization": f"Bearer {_VALID}"}
    for count in range(len(sent) + 1):
        for names in itertools.combinations(sent, count):
            key = shop.stage()
            shop.ran.clear()
            answer = call("POST", JOBS, {name: sent[name] for name in names}, key.encode())
            good = bool(platform and proofs.keys() & set(names))
            assert (answer.status, bool(shop.ran)) == (200 if good else 403, good), names


@pytest.mark.parametrize(
    "headers",
    [{"X-AppEngine-QueueName": ""}, {"X-AppEngine-Cron": "false"}, {"X-AppEngine-Cron": ""}],
)
def test_app_engine_s_headers_say_something(
    site: Callable[..., Call],
    shop: Shop,
    headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GAE_ENV", "standard")
    call = site(AppEngineHeader())
    assert call("POST", JOBS, headers, shop.stage().encode()).status == 403
    assert shop.ran == []


def test_each_secret(site: Callable[..., Call], shop: Shop) -> None:
    old = "an-older-secret-of-this-site"
    call = site(SharedSecret(SECRET, old))
    good = [f"Bearer {SECRET}", f"bearer {old}"]
    bad = [
        *(
            None,
            "",
            "Bearer",
            f"Basic {SECRET}",
            SECRET,
            f"Bearer {SECRET}x",
            f"Bearer {SECRET[1:]}",
        ),
        *(f"Bearer {SECRET.upper()}", f"Bearer {SECRET} {SECRET}", f"Bearer {SECRET},{SECRET}"),
        *(f"Bearer {SECRET[:-1]}", f"Bearer {_VALID}", "Bearer ü"),
    ]
    for value in good + bad:
        key = shop.stage()
        shop.ran.clear()
        answer = call("POST", JOBS, {} if value is None else {"Authorization": value}, key.encode())
        assert (answer.status, bool(shop.ran)) == ((200, True) if value in good else (401, False))


def test_any_of_several_callers(
    site: Callable[..., Call], shop: Shop, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = site(oidc(issuer), SharedSecret(SECRET), AppEngineHeader())
    monkeypatch.setenv("GAE_ENV", "standard")
    credentials = [
        {"Authorization": f"Bearer {_VALID}"},
        {"Authorization": f"Bearer {SECRET}"},
        {"X-AppEngine-QueueName": "jobs"},
    ]
    for headers in credentials:
        assert call("POST", JOBS, headers, shop.stage().encode()).status == 200
    wrong = {"Authorization": "Bearer wrong"}
    assert call("POST", JOBS, wrong, shop.stage().encode()).status == 403
    monkeypatch.delenv("GAE_ENV")
    assert call("POST", JOBS, credentials[2], shop.stage().encode()).status == 403


# --- certificates -------------------------------------------------------------------------------


def test_certificates_are_kept(site: Callable[..., Call], shop: Shop, issuer: Issuer) -> None:
    call = site(oidc(issuer))
    for _ in range(5):
        headers = {"Authorization": f"Bearer {_VALID}"}
        assert call("POST", JOBS, headers, shop.stage().encode()).status == 200
    headers = {"Authorization": f"Bearer {token('key-2')}"}
    assert call("POST", JOBS, headers, shop.stage().encode()).status == 401
    issuer.status = 500
    headers = {"Authorization": f"Bearer {_VALID}"}
    assert call("POST", JOBS, headers, shop.stage().encode()).status == 200
    assert issuer.fetched == 1


@pytest.mark.parametrize("status", [500, 302, 404, 204])
def test_without_certificates_a_token_cannot_be_verified(
    site: Callable[..., Call], shop: Shop, issuer: Issuer, status: int
) -> None:
    """A redirection is not followed: it might lead to a place without TLS."""
    issuer.status = status
    call = site(oidc(issuer))
    answer = call("POST", JOBS, {"Authorization": f"Bearer {_VALID}"}, shop.stage().encode())
    assert (answer.status, shop.ran) == (503, [])
    assert is_bare(answer)
    # Who shows no token learns nothing of it, and causes no request.
    assert call("POST", JOBS, {}, b"x").status == 401
    assert call("POST", JOBS, {"Authorization": "Bearer a.b.c"}, b"x").status == 401
    assert issuer.fetched == 1


def test_an_issuer_that_is_gone(site: Callable[..., Call], shop: Shop) -> None:
    with issuers.issuer() as gone:
        caller = oidc(gone)
    call = site(caller)
    answer = call("POST", JOBS, {"Authorization": f"Bearer {_VALID}"}, shop.stage().encode())
    assert (answer.status, shop.ran) == (503, [])


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


def test_datastore_does_not_answer(
    site: Callable[..., Call],
    shop: Shop,
    datastore: emulator.Emulator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from google.api_core.exceptions import ServiceUnavailable

    def fail(key: str) -> None:
        raise ServiceUnavailable("the-address-of-datastore")

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


def test_app_engine_s_cron_sends_get(
    site: Callable[..., Call], shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = site(AppEngineHeader())
    cron = {"X-AppEngine-Cron": "true"}
    assert call("GET", RELAY, cron).status == 403
    monkeypatch.setenv("GAE_ENV", "standard")
    assert call("GET", RELAY).status == 403
    assert call("GET", RELAY, cron).status == 200
    assert call("GET", JOBS, cron).status == 405


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
def test_nobody_may_call(shop: Shop, name: str) -> None:
    """A clear error at the start, for an engine that names no caller."""
    kinds = (userlock.ConfigurationError, ImproperlyConfigured)
    with (
        pytest.raises(kinds, match=r"nobody may call.*To fix it"),
        SITES[name](client=shop.client, outbox=shop.outbox) as call,
    ):
        call("POST", JOBS)
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
