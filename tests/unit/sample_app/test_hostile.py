"""Test every route, by the app's own list: hostile requests get clean, private answers.

The inspector, the contention lab and its bench included.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import flask
import pytest
from flask.testing import FlaskClient
from werkzeug.routing import Rule
from werkzeug.test import TestResponse

from sample_app.lab.desk import Desk
from sample_app.payment_provider.server import Server
from tests.unit.sample_app.conftest import OpenSite, Site

NINES = "9" * 5000
#: In addresses, queries, forms and JSON.
HOSTILE = [
    NINES, "9" * 19, "-1", "0", "1.5", "٣", "", "\x00", "../../etc/passwd", "a" * 2000,
    "<script>alert(1)</script>", "%", "\ud800", "//elsewhere.example", "__id__",
]  # fmt: skip


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
    quoted = "".join(f"%{byte:02X}" for byte in value.encode("utf-8", "surrogatepass"))
    return re.sub(r"<[^>]+>", quoted or "x", rule.rule)


def methods(rule: Rule) -> Iterator[str]:
    yield from sorted(rule.methods or ())
    yield "BREW"


def check(answer: TestResponse, what: str) -> None:
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


def test_a_form_that_is_too_large(client: FlaskClient) -> None:
    for path in ("/learners", "/api/learners", "/lab/runs", "/userlock/break"):
        answer = client.post(path, data={"name": "x" * 100_000})
        assert answer.status_code == 413
        check(answer, path)


# --- what the answer is -------------------------------------------------------------------------


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
