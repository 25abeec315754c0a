"""Test the inspector's pages of requests: forms, lists, completion."""

from __future__ import annotations

from typing import Any

import flask
import pytest

import userlock
from tests.contract.idempotency.conftest import KEY, rows
from tests.contract.idempotency.operators.conftest import NOW, Ended, Shop, asked, document, named
from tests.contract.outbox.operators.test_inspector import form
from userlock.admin import requests as reading
from userlock.contrib.inspector import requests as pages
from userlock.idempotency import Flow
from userlock.stores import MemoryStore

# --- forms -------------------------------------------------------------------------------------


def test_without_the_stamp_nothing_is_done(shop: Shop) -> None:
    shop.leave("ann")
    stamps: list[str | None] = [None, "", "x", "0" * 64, "\ud800", "²"]
    for stamp in stamps:
        data = named()
        if stamp is not None:
            data["stamp"] = stamp.encode("utf-8", "surrogatepass")
        assert shop.web.post(NOW, data=data).status_code == 409
    assert shop.sold == []


def test_a_stamp_is_for_the_request_that_was_shown(shop: Shop) -> None:
    shop.leave("ann")
    shop.leave("bob")
    data = {**named("bob"), "stamp": asked(shop.web, "ann")["stamp"]}
    assert shop.web.post(NOW, data=data).status_code == 409
    assert shop.sold == []


# --- lists --------------------------------------------------------------------------------------


def test_counts_and_lists(shop: Shop) -> None:
    shop.leave("ann")
    shop.ask("ann")
    shop.ask("eve")
    shop.leave("bob")
    shop.error = Ended()
    with pytest.raises(Ended):
        shop.ask("zoe")
    found = document(shop.web)
    assert found["counts"] == {"running": 1, "stuck": 1, "finished": 2, "resumed": 1}
    assert [(each["user"], each["state"]) for each in found["unfinished"]] == [
        ("bob", "stuck"),
        ("zoe", "running"),
    ]
    assert {(each["user"], each["attempts"]) for each in found["finished"]} == {
        ("ann", 2),
        ("eve", 1),
    }
    assert found["notes"] == []
    page = shop.web.get("/userlock/requests").text
    assert '<td>stuck</td><td class="duration">1m30s</td>' in page
    assert "order" in page
    assert "for 23h" in page
    for query, number in (("ann", 1), ("bob", 1), ("nobody", 0), ("x" * 2_000, 0)):
        one = document(shop.web, f"?user={query}")
        assert len(one["unfinished"]) + len(one["finished"]) == number, query
    assert "no longer" not in page
    shop.clock.advance(24 * 3600)
    assert "no longer" in shop.web.get("/userlock/requests").text


def test_lists_are_bounded_and_say_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_MOST_LISTED", 2)
    for user in ("ann", "bob", "eve"):
        shop.leave(user)
        shop.ask(user, f"{KEY}-2")
    found = document(shop.web)
    assert (len(found["unfinished"]), len(found["finished"])) == (2, 2)
    assert [each["user"] for each in found["unfinished"]] == ["ann", "bob"]
    assert found["counts"]["finished"] == 2
    assert found["notes"] == ["Up to 2 of each table are listed and counted."]


def test_a_long_attempt_that_has_its_lock_is_running(shop: Shop, store: MemoryStore) -> None:
    shop.leave("ann")
    held = shop.service.acquire("ann", lock_timeout=300)
    assert document(shop.web)["unfinished"][0]["state"] == "running"
    assert shop.web.post("/userlock/requests/complete", data=named()).status_code == 409
    shop.service.release(held)
    assert document(shop.web)["unfinished"][0]["state"] == "stuck"
    store.go_down("refused")
    assert document(shop.web)["unfinished"][0]["state"] == "stuck"
    assert "refused" in document(shop.web)["notes"][0]
    assert "may be running" in shop.web.post("/userlock/requests/show", data=named()).text


def test_one_request(shop: Shop) -> None:
    shop.leave("ann")
    shop.ask("bob")
    page = shop.web.get("/userlock/requests").text
    fields = form(page, "/requests/show")
    assert fields == {"user": "ann", "key": KEY, "namespace": ""}
    one = shop.web.post("/userlock/requests/show", data=fields).text
    for shown in (
        "rides",
        "<dd>stuck</dd>",
        "order",
        "the server or its client",
        "Complete …",
    ):
        assert shown in one, shown
    done = shop.web.post("/userlock/requests/show", data=named("bob")).text
    assert "<dt>Answer</dt><dd>200</dd>" in done
    assert "Complete …" not in done
    for wrong in (
        *(named("nobody"), named("", ""), named("x" * 2_000), named("ann", "x" * 3_000)),
        {**fields, "namespace": "no/namespace"},
    ):
        for path in ("show", "complete", "complete/now"):
            assert shop.web.post(f"/userlock/requests/{path}", data=wrong).status_code == 404


# --- completion ---------------------------------------------------------------------------------


def test_one_is_completed(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.leave("ann")
    page = shop.web.post("/userlock/requests/show", data=named()).text
    question = shop.web.post("/userlock/requests/complete", data=form(page, "/requests/complete"))
    assert "Complete the request rides?" in question.text
    assert shop.sold == [], "it asks first"
    done = shop.web.post(NOW, data=form(question.text, "/complete/now"))
    assert "Request completed" in done.text
    assert "answered with 200" in done.text
    assert "request rides of 'ann': completion begun by olga, in the inspector" in caplog.text
    assert shop.sold == ["ann"]
    again = shop.web.post(NOW, data=form(question.text, "/complete/now"))
    assert again.status_code == 409
    shop.ask("ann")
    assert shop.sold == ["ann"], "its client gets the answer"


def test_one_that_fails_again(shop: Shop) -> None:
    shop.leave("ann")
    data = asked(shop.web)
    shop.error = RuntimeError("again")
    page = shop.web.post(NOW, data=data).text
    assert "Request not complete" in page
    assert [row.is_finished for row in shop.rows()] == [False]


def test_one_that_has_changed_since_is_left(shop: Shop) -> None:
    shop.leave("ann")
    data = asked(shop.web)
    shop.leave("ann")
    answer = shop.web.post(NOW, data=data)
    assert (answer.status_code, "has changed" in answer.text) == (409, True)
    assert shop.sold == []


def test_one_that_runs_since_is_left(shop: Shop) -> None:
    """The attempt is the same, its holder hangs no more: the lock is held again."""
    shop.leave("ann")
    data = asked(shop.web)
    shop.service.acquire("ann")
    assert shop.web.post(NOW, data=data).status_code == 409
    assert shop.sold == []


def test_a_lock_that_is_taken_in_between(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the lock is for the operator; the lock itself decides."""
    shop.leave("ann")
    data = asked(shop.web)
    shop.service.acquire("ann")
    monkeypatch.setattr(reading.Shown, "_is_held", lambda self, user: False)
    assert "Request not complete" in shop.web.post(NOW, data=data).text
    assert shop.sold == []


def test_those_of_clients_alone_are_left(shop: Shop) -> None:
    def fails(flow: Flow) -> flask.Response:
        flow.phase("begun", lambda: None)
        raise RuntimeError("no")

    view = shop.flows.idempotent(user=lambda: "ann", name="view")(fails)
    shop.app.add_url_rule("/view", "view", view, methods=["POST"])
    with pytest.raises(RuntimeError):
        shop.web.post("/view", json={}, headers={"Idempotency-Key": KEY})
    shop.leave("bob")
    with shop.client.context():
        (row,) = (each for each in rows() if each.user == "bob")
        row.flow = "elsewhere"
        row.put()
    assert (
        "a process that has its function"
        in shop.web.post("/userlock/requests/show", data=named("bob")).text
    )
    assert "its client alone" in shop.web.post("/userlock/requests/show", data=named("ann")).text
    for user in ("ann", "bob"):
        assert "Complete …" not in shop.web.post("/userlock/requests/show", data=named(user)).text
        answer = shop.web.post("/userlock/requests/complete", data=named(user))
        assert (answer.status_code, "cannot be completed" in answer.text) == (409, True)


@pytest.mark.parametrize("apart", [True, False], ids=["apart", "control"])
def test_a_view_does_not_see_the_operators_request(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """A view that reads the session would take the operator's for its client's."""
    seen: list[Any] = []

    def view(flow: Flow) -> flask.Response:
        flow.phase("order", lambda: None)
        if shop.error is not None:
            raise shop.error
        seen.append(flask.has_request_context())
        return flask.Response("sold", 201)

    once = shop.flows.idempotent(user=lambda: "ann", name="view", completable=True)(view)
    shop.app.add_url_rule("/view", "view", once, methods=["POST"])
    shop.error = RuntimeError("no")
    with pytest.raises(RuntimeError):
        shop.web.post("/view", json={}, headers={"Idempotency-Key": KEY})
    shop.error = None
    shop.clock.advance(90)
    with shop.web.session_transaction() as session:
        session["user"] = "olga"
    if not apart:
        monkeypatch.setattr(pages, "_apart", lambda complete, service: complete())
    page = shop.web.post(NOW, data=asked(shop.web)).text
    assert ("answered with 201" in page) == apart
    # Flask's `idempotent` refuses what the page has to prevent.
    assert seen == ([False] if apart else [])


def test_the_settings_and_locks_of_the_app_stay(shop: Shop) -> None:
    """Apart from the request: under the app's service, and no lock stays held."""
    userlock.configure(service=userlock.LockService(MemoryStore()))
    held: list[bool] = []

    @shop.flows.function(name="look")
    def look(flow: Flow) -> None:
        flow.phase("order", lambda: None)
        if shop.error is not None:
            raise shop.error
        held.append(shop.service.holder("ann") is not None)

    shop.error = RuntimeError("no")
    with shop.client.context(), pytest.raises(RuntimeError):
        look("ann", KEY)
    shop.error = None
    shop.clock.advance(90)
    assert "Request completed" in shop.web.post(NOW, data=asked(shop.web)).text
    assert held == [True]
    assert shop.service.holder("ann") is None


@pytest.mark.parametrize("shown", ["plain", "masked"])
def test_of_tenants_with_one_key_that_which_was_shown(shop: Shop, shown: str) -> None:
    for tenant in ("", "b"):
        shop.fail("ann", tenant=tenant)
    shop.clock.advance(90)
    userlock.configure(show_ids=shown)
    assert "<td>b</td>" in shop.web.get("/userlock/requests").text
    page = shop.web.post("/userlock/requests/show", data={**named(), "namespace": "b"}).text
    fields = {**named(), **form(page, "/requests/complete")}
    question = shop.web.post("/userlock/requests/complete", data=fields).text
    shop.web.post(NOW, data={**named(), **form(question, "/complete/now")})
    done = document(shop.web)["finished"]
    assert [each["namespace"] for each in done] == ["b"]
