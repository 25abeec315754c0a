"""Test the inspector: authorisation, views, and breaking a lock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient
from google.cloud import ndb
from werkzeug.exceptions import Unauthorized

import userlock
from userlock import ids
from userlock.admin.locks import Listing, LockState
from userlock.contrib.flask import Flows, UserLock, user_lock
from userlock.contrib.inspector import Inspector
from userlock.events import Broken, Event, Rejected
from userlock.lock.lease import process_label
from userlock.lock.record import Record
from userlock.outbox import Outbox
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim
from userlock.waits import run

VIEWS = ["locks", "contention", "endpoints", "violations"]
MARK = "zoe.marker+7@example.org"
pytestmark = pytest.mark.usefixtures("own_listeners")


class Jar(userlock.UserModel):
    """One user's jar, locked by its key's name."""

    _lock_id_from_key = userlock.key_id
    coins = ndb.IntegerProperty(default=0)


class Site:
    """An app with an inspector, and what it stands on; `client` is an operator's browser."""

    def __init__(
        self,
        ndb_client: ndb.Client,
        service: userlock.LockService,
        store: MemoryStore,
        clock: ManualClock,
    ) -> None:
        self.ndb_client, self.service, self.store, self.clock = ndb_client, service, store, clock
        self.client = self.app(lambda request: "olga").test_client()

    def app(self, inspector: Any, **config: Any) -> flask.Flask:
        app = flask.Flask(__name__)
        app.config.update(config)
        UserLock(app, client=self.ndb_client, service=self.service, inspector=inspector)

        @app.post("/users/<user_id>/coins")
        def add_coins(user_id: str) -> str:
            with userlock.global_lock(user_id, wait_timeout=0.5):
                pass
            return "fine"

        @app.post("/forget-the-lock")
        def forget_the_lock() -> str:
            Jar(id="ann").put()
            return "never"

        return app

    def whole(self, authorise: Any) -> flask.Flask:
        """Return an app whose inspector has all pages."""
        outbox = Outbox("inline://?threads=0", client=self.ndb_client, service=self.service)
        return self.app(Inspector(authorise, outbox=outbox, flows=Flows()))


@pytest.fixture
def site(
    ndb_client: ndb.Client, service: userlock.LockService, store: MemoryStore, clock: ManualClock
) -> Site:
    return Site(ndb_client, service, store, clock)


# --- authorisation ------------------------------------------------------------------------------


#: The inspector's routes, and those of an outbox and of flows.
LOCKS = {"home", "page", "document", "ask", "break_"}
JOBS = {
    *("jobs", "find_jobs", "jobs_document", "job", "find_job"),
    *("ask_redrive", "redrive", "ask_purge", "purge"),
}
REQUESTS = {
    *("requests", "requests_document", "find_requests", "find_request"),
    *("ask_complete", "complete"),
}
#: `tests/unit/test_origin.py` has the others.
OTHER_SITES = [
    {"Origin": "https://localhost"},
    {"Referer": "https://elsewhere.example/page"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost"},
]


def routes(app: flask.Flask) -> Iterator[tuple[str, str, str]]:
    """Give the endpoint, a method and an address of each route of the inspector but its style."""
    values = {"name": "locks", "key": "x"}
    for rule in app.url_map.iter_rules():
        blueprint, _, endpoint = rule.endpoint.rpartition(".")
        if blueprint == "userlock_inspector" and endpoint != "static":
            built = app.url_map.bind("localhost").build(
                rule.endpoint, {name: values[name] for name in rule.arguments}
            )
            for method in sorted(rule.methods or ()):
                yield endpoint, method, built


def test_the_routes_of_the_tables_below(site: Site) -> None:
    """Without outbox and flows, their routes are not there."""
    found = {endpoint for endpoint, _, _ in routes(site.whole(lambda _: "olga"))}
    assert found == LOCKS | JOBS | REQUESTS
    bare = site.app(lambda _: "olga")
    assert {endpoint for endpoint, _, _ in routes(bare)} == LOCKS
    assert not {"outbox", "requests"} & set(bare.test_client().get("/userlock/").text.split())


@pytest.mark.parametrize("answer", [False, None, "", 1, object(), "olga"])
def test_each_route_refuses_others(site: Site, answer: Any) -> None:
    """An operator is the negative control."""
    site.service.acquire("ann")
    app = site.whole(lambda request: answer)
    for endpoint, method, path in routes(app):
        response = app.test_client().open(path, method=method)
        assert (response.status_code == 403) is not (answer == "olga"), (endpoint, method)
        assert answer == "olga" or "ann" not in response.text
        private(response)


@pytest.mark.parametrize(
    ("error", "status"),
    [(LookupError("no session"), 403), (ValueError("a forged token"), 403), (Unauthorized(), 401)],
    ids=repr,
)
def test_a_function_that_fails_refuses_everybody(site: Site, error: Exception, status: int) -> None:
    """An answer of its own goes out."""

    def fail(request: flask.Request) -> str:
        raise error

    site.service.acquire("ann")
    app = site.whole(fail)
    for _, method, path in routes(app):
        answer = app.test_client().open(path, method=method)
        assert (answer.status_code, "ann" in answer.text) == (status, False)


@pytest.mark.parametrize("headers", [{}, {"Origin": "http://localhost"}, *OTHER_SITES], ids=str)
def test_each_form_of_another_site_is_refused(site: Site, headers: dict[str, str]) -> None:
    app = site.whole(lambda request: "olga")
    forms = [path for _, method, path in routes(app) if method == "POST"]
    assert len(forms) == 12
    for path in forms:
        answer = app.test_client().post(path, headers=headers)
        assert (answer.status_code == 403) is (headers in OTHER_SITES), path


def test_it_is_off_by_default(site: Site) -> None:
    assert site.app(None).test_client().get("/userlock/").status_code == 404


def test_without_a_function_that_decides_there_is_no_inspector() -> None:
    with pytest.raises(TypeError, match="a function that decides who may see it"):
        Inspector(True)  # type: ignore[arg-type]
    another_extension = SimpleNamespace(init_app=lambda *_: None)
    with pytest.raises(TypeError, match="a function that decides who may see it"):
        UserLock(inspector=another_extension)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["url_prefix", "outbox", "flows", "back_to"])
def test_a_value_of_another_kind_is_refused(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} must be .*, not 7"):
        Inspector(lambda request: "olga", **{name: 7})  # type: ignore[arg-type]


#: Addresses that Flask answers before any route's function.
BESIDE = ["/userlock", "//userlock/", "//userlock/locks", "/userlock//locks", "/userlock//",
          "/userlock/a/b", "/userlock/locks/", "/userlock/break/now/"]  # fmt: skip


@pytest.mark.parametrize("answer", [False, "olga"])
@pytest.mark.parametrize("path", [*BESIDE, "/userlock/locks", "/userlock/break"])
def test_nothing_is_told_before_the_check(site: Site, path: str, answer: Any) -> None:
    """No redirection and no 405: they would tell which addresses there are."""
    app = site.app(lambda request: answer)
    for method in ("GET", "POST", "PUT", "OPTIONS", "BREW"):
        response = app.test_client().open(method=method, environ_overrides={"PATH_INFO": path})
        assert response.status_code in ((200, 400, 404) if answer else (403, 404)), method
        private(response)


def test_the_address_without_a_slash(site: Site) -> None:
    assert site.client.get("/userlock").status_code == 200


def test_other_addresses_of_the_app_are_left_alone(site: Site) -> None:
    """The negative control."""
    assert site.client.get("/forget-the-lock").status_code == 405
    redirected = site.client.post(environ_overrides={"PATH_INFO": "/users//ann/coins"})
    assert redirected.status_code == 308
    assert "X-Frame-Options" not in site.client.get("/userlocks/").headers


def private(response: Any) -> None:
    assert response.headers["Cache-Control"] == "no-store"
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    assert response.headers["X-Frame-Options"] == "DENY"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(("operator", "status"), [("olga", 200), (None, 403)])
def test_the_style_is_behind_the_same_door(site: Site, operator: str | None, status: int) -> None:
    client = site.app(lambda request: operator).test_client()
    with client.get("/userlock/static/inspector.css") as response:
        assert response.status_code == status
        private(response)
    for path in ("nothing", "no/thing"):
        private(client.get(f"/userlock/{path}"))


def test_an_answer_that_replaces_the_page_is_private_too(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write of the request fails after the page is made, and the problem document goes out."""
    stale = userlock.StaleWriteError(
        key=None, lock_id="ann", read_version=1, found_version=2, read_at=None, put_at=None
    )
    monkeypatch.setattr("userlock.contrib.flask.finish_writes", lambda status: stale)
    response = site.app(lambda request: "olga").test_client().get("/userlock/")
    assert response.status_code == 409
    private(response)


# --- views --------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_has_a_page_and_a_document(site: Site, view: str) -> None:
    page = site.client.get(f"/userlock/{view}")
    assert page.status_code == 200
    document = site.client.get(f"/userlock/{view}.json").get_json()
    assert document["view"] == view
    assert f'href="/userlock/{view}.json"' in page.text


def rows(client: FlaskClient, view: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/userlock/{view}.json").get_json()["rows"]
    return found


def test_holders_and_waiters(site: Site) -> None:
    site.service.acquire("ann", request="POST /users/ann/coins")
    assert run(site.service.protocol.join, make_claim("ann", request="POST /again")) is not None
    site.clock.advance(3)
    held, waiting = rows(site.client, "locks")
    assert held["lock_id"] == waiting["lock_id"] == "ann"
    assert (held["state"], held["request"]) == ("holder", "POST /users/ann/coins")
    assert held["seconds"] == pytest.approx(3)
    assert (waiting["state"], waiting["request"]) == ("waiter 1", "POST /again")
    assert "token" not in held, "with the token, anybody could pass for the holder"
    page = site.client.get("/userlock/locks").text
    assert "POST /users/ann/coins" in page
    assert "3.0s" in page


def test_a_store_that_does_not_answer_is_reported(site: Site) -> None:
    site.service.acquire("ann")
    site.store.go_down("connection refused")
    assert "does not answer: connection refused" in site.client.get("/userlock/locks").text


def test_contention_by_lock_and_by_endpoint(site: Site) -> None:
    site.client.post("/users/ben/coins")
    lease = site.service.acquire("ann")
    assert site.client.post("/users/ann/coins").status_code == 503
    site.service.release(lease)
    site.client.post("/users/ann/coins")
    (lock,) = rows(site.client, "contention")
    assert (lock["name"], lock["locks"], lock["timed_out"]) == ("ann", 1, 1)
    assert lock["longest_seconds"] == pytest.approx(0.5)
    by_endpoint = {row["name"]: row for row in rows(site.client, "endpoints")}
    mine = by_endpoint["POST /users/<user_id>/coins"]
    assert (mine["locks"], mine["waited"], mine["timed_out"]) == (2, 1, 1)


def test_rejections_by_lock_and_by_endpoint(site: Site) -> None:
    lease = site.service.acquire("ann")
    site.service.listeners.emit(Rejected("ann", "interactive", 0.0, "POST /other", waiting=5))
    site.service.release(lease)
    (lock,) = rows(site.client, "contention")
    assert (lock["name"], lock["rejected"], lock["waited"]) == ("ann", 1, 0)
    (elsewhere,) = rows(site.client, "endpoints")
    assert (elsewhere["name"], elsewhere["rejected"]) == ("(not in a request)", 1)
    assert "Rejected" in site.client.get("/userlock/contention").text


def test_violations_with_both_places(site: Site) -> None:
    site.client.post("/forget-the-lock")
    (row,) = [each for each in rows(site.client, "violations") if each["kind"] == "Jar"]
    assert row["violation"] == "CreatedWithoutLock"
    assert __file__ in row["put_at"]
    assert __file__ in site.client.get("/userlock/violations").text


# --- masked -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["masked", "hashed", "plain"])
def test_masked_pages_identify_nobody(site: Site, form: str) -> None:
    """Plain is the control."""
    userlock.configure(show_ids=form, id_key="one")
    client = site.app(lambda request: True).test_client()
    client.application.add_url_rule(
        "/view/<user_id>", "view", user_lock("user_id")(lambda user_id: "fine")
    )
    lease = site.service.acquire(MARK, request=f"POST /users/{MARK}/coins", lock_timeout=600)
    run(site.service.protocol.join, make_claim(MARK, request=f"POST /users/{MARK}/coins"))
    client.post(f"/users/{MARK}/coins")
    client.get(f"/view/{MARK}")
    paths = [f"/userlock/{view}{end}" for view in VIEWS for end in ("", ".json")]
    answers = [client.get(path) for path in paths]
    answers.append(client.post("/userlock/break", data={"lock_id": MARK}))
    held, waiting = rows(client, "locks")
    (contended,) = (each for each in rows(client, "contention") if each["timed_out"] == 2)
    assert contended["name"] == held["lock_id"] == waiting["lock_id"], "the same looks the same"
    data = {"lock_id": MARK, "token": lease.token}
    answers.append(client.post("/userlock/break/now", data=data))
    assert "Lock broken" in answers[-1].text
    for answer in answers:
        assert answer.status_code == 200
    shown = "".join(f"{each.headers}{each.text}" for each in answers)
    assert (MARK in shown) is (form == "plain"), "not even what was typed: it is typed again"
    assert (held["request"] == "POST /users/<user_id>/coins") is (form != "plain")


@pytest.mark.parametrize(
    ("form", "shown"), [("plain", "sha256:"), ("masked", "***"), ("hashed", "#")]
)
def test_a_lock_that_the_store_keeps_as_a_hash(
    site: Site, monkeypatch: pytest.MonkeyPatch, form: str, shown: str
) -> None:
    """The hash can be made from a guessed id, so it is hidden, too, as that of the id is."""
    digest = hashlib.sha256(b"ann").hexdigest()
    site.service.acquire("ann")
    stored = site.store.read("ann")
    assert stored is not None
    listing = Listing([LockState(digest, Record(stored), True)])
    monkeypatch.setattr("userlock.admin.memory.list_locks", lambda *_: listing)
    userlock.configure(show_ids=form, id_key="secret")
    client = site.app(lambda request: True).test_client()
    (row,) = rows(client, "locks")
    assert row["lock_id"].startswith(shown)
    assert form != "hashed" or row["lock_id"] == ids.show("ann"), "as in the log"
    assert "Break the lock" not in client.get("/userlock/locks").text, "by its id alone"


# --- breaking -----------------------------------------------------------------------------------


def test_breaking_asks_first_and_leaves_a_trace(site: Site) -> None:
    events: list[Event] = []
    site.service.listeners.add(events.append)
    lease = site.service.acquire("ann", request="POST /users/ann/coins")
    question = site.client.post("/userlock/break", data={"lock_id": "ann"})
    assert "Break the lock “ann”?" in question.text
    assert "POST /users/ann/coins" in question.text
    assert site.service.holder("ann") is not None
    done = site.client.post("/userlock/break/now", data={"lock_id": "ann", "token": lease.token})
    assert done.status_code == 200
    assert site.service.holder("ann") is None
    (broken,) = [event for event in events if isinstance(event, Broken)]
    assert (broken.lock_id, broken.by) == ("ann", "olga, in the inspector")


def test_only_the_lease_that_was_shown_is_broken(site: Site) -> None:
    first = site.service.acquire("ann")
    site.service.release(first)
    site.service.acquire("ann")
    answer = site.client.post("/userlock/break/now", data={"lock_id": "ann", "token": first.token})
    assert answer.status_code == 409
    assert site.service.holder("ann") is not None


def test_it_changes_hands_while_it_is_broken(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock changes hands after the record is read: the next holder keeps it."""
    look = site.service.look

    def look_and_hand_over(lock_id: str | int) -> Record | None:
        found = look(lock_id)
        if found is not None and found.holder.token == first.token:
            site.service.release(first)
            site.service.acquire("ann", request="POST /next")
        return found

    first = site.service.acquire("ann")
    monkeypatch.setattr(site.service, "look", look_and_hand_over)
    answer = site.client.post("/userlock/break/now", data={"lock_id": "ann", "token": first.token})
    assert answer.status_code == 409
    holder = site.service.holder("ann")
    assert holder is not None
    assert holder.request == "POST /next"


@pytest.mark.parametrize(
    ("data", "status", "text"),
    [
        ({"lock_id": "ben"}, 200, "Lock not held"),
        ({"lock_id": ""}, 400, "Not a lock id"),
        ({}, 400, "Not a lock id"),
    ],
)
def test_nothing_to_break(site: Site, data: dict[str, str], status: int, text: str) -> None:
    answer = site.client.post("/userlock/break", data=data)
    assert (answer.status_code, text in answer.text) == (status, True)


# --- navigation ---------------------------------------------------------------------------------


def test_the_navigation_tells_which_pages_are_of_this_process(site: Site) -> None:
    text = site.client.get("/userlock/").text
    shared, own = text.index("All processes"), text.index(f"This process only: {process_label()}")
    assert shared < text.index("/userlock/locks") < own < text.index("/userlock/contention")


def test_the_way_back(site: Site) -> None:
    assert "Back to the app" not in site.client.get("/userlock/").text
    inspector = Inspector(lambda request: "olga", back_to="/start")
    page = site.app(inspector).test_client().get("/userlock/violations").text
    assert '<a href="/start">Back to the app</a>' in page


@pytest.mark.parametrize("good", ["/", "/start?a=1#b", "http://a.example", "https://a.example/b"])
def test_addresses_of_the_way_back(good: str) -> None:
    Inspector(lambda request: "olga", back_to=good)


@pytest.mark.parametrize(
    "bad",
    ["javascript:alert(1)", "JavaScript:1", " javascript:1", "\tjavascript:1", "data:text/html,a",
     "vbscript:a", "httpsx://a", "start", ""],
)  # fmt: skip
def test_addresses_that_would_run_a_script(bad: str) -> None:
    with pytest.raises(ValueError, match="back_to"):
        Inspector(lambda request: "olga", back_to=bad)
