"""Test every route, by the app's own list: hostile requests get clean, private answers.

The inspector, the contention lab and its bench included.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import flask
import pytest
from flask.testing import FlaskClient
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from sample_app.flows import new_key
from sample_app.lab.desk import Desk
from sample_app.lab.plan import Plan
from sample_app.payment_provider.server import Server
from tests.unit.sample_app.conftest import OpenSite, Site

NINES = "9" * 5000
#: In addresses, queries, forms and JSON.
HOSTILE = [
    NINES, "9" * 19, "-1", "0", "1.5", "٣", "", "\x00", "../../etc/passwd", "a" * 2000,
    "<script>alert(1)</script>", "%", "\ud800", "//elsewhere.example", "__id__",
]  # fmt: skip
_ASKED_FOR = re.compile(r"""(?:field|args\.get|form\.get|getlist)\(\s*["']([\w-]+)["']""")


def fields_of(view: object) -> list[str]:
    """Return the names of the fields and parameters that the file of a view asks for."""
    module = inspect.getmodule(inspect.unwrap(view))  # type: ignore[arg-type]
    found = set(_ASKED_FOR.findall(inspect.getsource(module))) if module else set()
    if "lab.pages" in getattr(module, "__name__", ""):
        found |= {field.name for field in dataclasses.fields(Plan)}
    return sorted(found | {"question-0"})


DOCUMENTS = [
    b"[" * 50_000, b'{"answers":' * 50_000, b"", b"{", b"[]", b"null", b"\xff", b'"\\ud800"',
    NINES.encode(), b'{"name": %b}' % NINES.encode(), b'{"answers": [NaN, 1e400, -0]}',
    b'{"coach": ["a"], "learner": {"b": 1}, "name": 5, "answers": [[1]]}',
]  # fmt: skip
HEADERS = [
    {"Origin": "http://["},
    {"Origin": f"http://localhost:{NINES}"},
    {"Origin": "\xff"},
    {"Origin": "http://localhost, http://elsewhere.example"},
    {"Referer": "http://["},
    {"Sec-Fetch-Site": "\xff"},
    {"Host": "["},
    {"Host": "[::1"},
    {"Host": f"localhost:{NINES}"},
    {"Host": "a b"},
    {"Host": ""},
    {"Content-Length": NINES},
    {"Content-Type": "application/json; charset=\xff"},
    {"Content-Type": "multipart/form-data"},
    {"Cookie": f"session={'a' * 3000}"},
    {"Cookie": "session=\xff;;="},
    {"X-Forwarded-For": "["},
    {"Range": f"bytes={NINES}-"},
    {"If-Modified-Since": NINES},
    {"If-None-Match": '"' * 99},
    {"X-CloudTasks-QueueName": "x"},
]


@pytest.fixture
def hostile_site(
    open_site: OpenSite, provider: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Site:
    """Open the site with all its routes, as it is served: errors become answers."""
    monkeypatch.setattr(Desk, "start", lambda *_: "1234567890-abcdef")
    site = open_site(
        TESTING=False,
        INSPECTOR=True,
        LAB_DIR=str(tmp_path),
        LAB_BENCH=True,
        PAYMENT_PROVIDER=provider.url,
        SECRET_KEY="fixed",
    )
    site.app.config["PROPAGATE_EXCEPTIONS"] = False
    return site


#: `make test` sends some of the requests, as a learner; the longer suites all, as the others too.
_SENDERS = [
    "learner",
    pytest.param("nobody", marks=pytest.mark.slow),
    pytest.param("coach", marks=pytest.mark.long),
]


@pytest.fixture(params=_SENDERS)
def client(request: pytest.FixtureRequest, hostile_site: Site) -> FlaskClient:
    client = hostile_site.app.test_client()
    if request.param == "learner":
        assert client.post("/sign-in", data={"learner": "ada"}).status_code == 303
    if request.param == "coach":
        assert client.post("/tasks/seed").status_code == 200
        assert client.post("/sign-in", data={"coach": "coach:mira"}).status_code == 303
    return client


def rules(app: flask.Flask) -> list[Rule]:
    return sorted(app.url_map.iter_rules(), key=lambda rule: (rule.rule, rule.endpoint))


def address(rule: Rule, value: str) -> str:
    """Return the rule's address with this value in each place."""
    quoted = "".join(f"%{byte:02X}" for byte in value.encode("utf-8", "surrogatepass"))
    return re.sub(r"<[^>]+>", quoted or "x", rule.rule)


def methods(rule: Rule) -> Iterator[str]:
    yield from sorted(rule.methods or ())
    yield "BREW"


def check(answer: TestResponse, what: str) -> None:
    """Check that an answer is clean and private."""
    assert answer.status_code < 500 or answer.status_code == 503, f"{what}: {answer.status}"
    assert answer.status_code != 503, f"{what}: {answer.text[:300]}"
    headers = answer.headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy, what
    assert "frame-ancestors 'none'" in policy, what
    assert "unsafe" not in policy, what
    assert headers["X-Frame-Options"] == "DENY", what
    assert headers["X-Content-Type-Options"] == "nosniff", what
    assert headers["Referrer-Policy"] == "same-origin", what
    is_file = answer.request.path.startswith(("/static/", "/userlock/static/"))
    if not is_file or answer.status_code >= 400:
        assert headers["Cache-Control"] == "no-store", what
    assert not re.match(r"(https?:)?//(?!localhost/)", headers.get("Location", "")), what
    answer.close()


def test_every_route_with_every_hostile_value(client: FlaskClient) -> None:
    for rule in rules(client.application):
        if "<" not in rule.rule:
            continue
        for value, method in itertools.product(HOSTILE, methods(rule)):
            path = address(rule, value)
            check(client.open(path, method=method), f"{method} {path[:80]}")


@pytest.mark.slow
def test_every_parameter_of_every_route(client: FlaskClient) -> None:
    """One at a time. The others are valid, so that this one is looked at."""
    valid = {
        "name": "New", "title": "T", "state": "active", "part": "0", "points": "1", "word": "",
        "course": "sky", "learner": "ada", "request": new_key(), "answers": [0], "lock_id": "x",
        "token": "t", "hold_ms": "0", "mood": "charges",
    }  # fmt: skip
    seen = set()
    for rule in rules(client.application):
        path = rule.rule.replace("<learner_id>", "ada").replace("<exercise>", "primes")
        path = path.replace("<video>", "tides").replace("<slug>", "tides").replace("<way>", "none")
        path = re.sub("<[^>]+>", "1", path)
        names = fields_of(client.application.view_functions[rule.endpoint])
        seen |= set(names)
        for name, value in itertools.product(names, HOSTILE):
            sendable = value.encode("utf-8", "replace")
            what = f"{path} {name}={value[:20]!r}"
            if "GET" in (rule.methods or ()):
                check(client.get(path, query_string={name: sendable}), what)
            if "POST" in (rule.methods or ()):
                given = {key: each for key, each in valid.items() if key != "answers"}
                data = {**given, name: sendable}
                check(client.post(path, data=data, query_string={name: sendable}), what)
                check(client.post(path, json={**valid, name: value}), what)
    # What is looked for is found.
    assert {"after", "other", "part", "points", "answers", "hold_ms", "clients"} <= seen
    assert {"lock_id", "token"} <= seen


@pytest.mark.slow
def test_documents_that_are_none(client: FlaskClient) -> None:
    for rule in rules(client.application):
        if "POST" in (rule.methods or ()):
            path = address(rule, "primes").replace("/learners/primes", "/learners/ada")
            for body in DOCUMENTS:
                for content_type in ("application/json", "application/x-www-form-urlencoded"):
                    answer = client.post(path, data=body, content_type=content_type)
                    check(answer, f"{path} {body[:20]!r}")


@pytest.mark.slow
def test_every_header_on_every_route(client: FlaskClient) -> None:
    for rule in rules(client.application):
        path = address(rule, "1")
        for headers in HEADERS:
            for method in ("GET", "POST"):
                answer = client.open(path, method=method, headers=headers)
                check(answer, f"{method} {path} {headers}")


@pytest.mark.parametrize(
    "path", ["/nowhere", "/userlock", "//userlock/locks", "/lab", "/userlock/a/b", "//", "/%ff"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS", "BREW"])
def test_addresses_without_a_route(client: FlaskClient, path: str, method: str) -> None:
    # Not as an argument: of `//userlock`, the client would make a host.
    check(client.open(method=method, environ_overrides={"PATH_INFO": path}), path)


def test_a_form_that_is_too_large(client: FlaskClient) -> None:
    for path in ("/learners", "/api/learners", "/lab/runs", "/userlock/break"):
        answer = client.post(path, data={"name": "x" * 100_000})
        assert answer.status_code == 413
        check(answer, path)


# --- what the answer is -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clients", "requests", "hold_ms", "batch_percent"])
@pytest.mark.parametrize("value", [NINES, "-1", "1.5", "٣", "x"])
def test_a_parameter_of_the_lab(hostile_site: Site, name: str, value: str) -> None:
    answer = hostile_site.client.post("/lab/runs", data={name: value})
    assert answer.status_code == 400
    assert f"{name} is" in answer.text
    assert "it is a whole number from" in answer.text
    assert NINES[:100] not in answer.text.partition('role="alert"')[2].partition("</p>")[0]


@pytest.mark.parametrize("value", [NINES, "501", "-1", "x", "٣"])
def test_a_parameter_of_the_bench(hostile_site: Site, value: str) -> None:
    answer = hostile_site.client.post("/lab/bench/none/n", query_string={"hold_ms": value})
    assert answer.status_code == 400
    assert answer.get_json()["detail"] == "hold_ms: a whole number from 0 to 500"


@pytest.mark.parametrize("number", [NINES, "9" * 19, "0", "-1", "x", "٣"])
def test_a_project_of_an_invalid_number_is_none(site: Site, number: str) -> None:
    ada = site.sign_in()
    for path in (f"/projects/{number}", f"/projects/{number}/delete"):
        answer = ada.get(path)
        assert answer.status_code == 404
        assert "There is no project" in answer.text


@pytest.mark.parametrize("part", [NINES, "-1", "x", "1000"])
def test_a_part_of_an_invalid_number(site: Site, part: str) -> None:
    answer = site.client.post(f"/api/learners/ada/videos/tides/parts/{part}/finish")
    assert answer.status_code == 400
    assert answer.get_json()["detail"] == "part: a whole number from 0 to 999"


def test_the_user_is_asked_for_first(hostile_site: Site) -> None:
    """By rule: without a user no page tells what it thinks of a request."""
    public = {"home", "create", "record", "sign_in", "sign_out", "nightly", "nightly_document",
              "start_nightly", "jobs", "jobs_document", "set_post_office",
              "redrive"}  # fmt: skip
    for rule in rules(hostile_site.app):
        blueprint, _, page = rule.endpoint.rpartition(".")
        if blueprint != "views" or page in public:
            continue
        for value, method in itertools.product(HOSTILE, ("GET", "POST")):
            if method in (rule.methods or ()) and "/" not in value:
                path = address(rule, value)
                stranger = hostile_site.app.test_client()
                answer = stranger.open(path, method=method, data={"title": ""})
                assert (answer.status_code, answer.headers.get("Location")) == (303, "/"), path
