"""Test the inspector's pages of jobs: forms, views, redrive and purge, hostile texts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import flask
import pytest
from flask.testing import FlaskClient
from google.cloud import ndb

import userlock
from tests.contract.outbox.operators.conftest import Shop
from tests.poison import TEXTS
from userlock.admin import jobs as reading
from userlock.contrib.inspector import Inspector, jobs

CHANGES = ["/userlock/outbox/redrive/now", "/userlock/outbox/purge/now"]
MARK = "zoe.marker+7@example.org"
pytestmark = pytest.mark.usefixtures("own_listeners")


class Forms(HTMLParser):
    """The forms of a page: their addresses, with their hidden values."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.elements: set[tuple[str, ...]] = set()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.elements.add((tag, *sorted(given)))
        if tag == "form":
            self.found.append((given["action"], {}))
        if tag == "input" and given.get("type") == "hidden":
            self.found[-1][1][given["name"]] = given["value"]


def form(page: str, action: str) -> dict[str, str]:
    """Return the hidden values of the first form with that address."""
    return next(values for address, values in Forms(page).found if address.endswith(action))


def asked(web: FlaskClient, action: str, **choice: str) -> dict[str, str]:
    """Ask for an action; return the hidden values of the question's form."""
    answer = web.post(f"/userlock/outbox/{action}", data=choice)
    assert answer.status_code == 200
    return form(answer.text, f"/outbox/{action}/now")


def dead(shop: Shop) -> list[str]:
    return sorted(row.owner for row in shop.rows() if row.dead is not None)


# --- forms -------------------------------------------------------------------------------------


def test_an_outbox_can_be_given_by_the_integration(shop: Shop, ndb_client: ndb.Client) -> None:
    app = flask.Flask(__name__)
    Inspector(lambda request: "olga").init_app(app, shop.service, shop.outbox)
    assert app.test_client().get("/userlock/outbox").status_code == 200


@pytest.mark.parametrize("path", CHANGES)
def test_without_the_token_nothing_is_done(shop: Shop, path: str) -> None:
    key = shop.kill(shop.pay, "ann")
    tokens = ["", "1.1." + "0" * 64, "9" * 18 + ".1." + "0" * 64, "\ud800", "².1.x"]
    choices = ({"cause": ""}, {"cause": "pay RuntimeError"}, {"key": key})
    for token, choice in itertools.product(tokens, choices):
        data: Any = {**choice, "number": "1", "token": token.encode("utf-8", "surrogatepass")}
        assert shop.web.post(path, data=data).status_code == 409
    for choice in choices:
        assert shop.web.post(path, data={**choice, "number": "1"}).status_code == 409
    assert dead(shop) == ["ann"]


def test_a_token_is_for_what_was_shown(shop: Shop) -> None:
    """Each token with each choice: only the one that was asked for is carried out."""
    keys = [shop.kill(shop.pay, "ann"), shop.kill(shop.payback, "bob")]
    choices = [{"cause": ""}, {"cause": "pay"}, {"cause": "payback"}, *({"key": k} for k in keys)]
    tokens = [asked(shop.web, "purge", **choice)["token"] for choice in choices]
    for (at, token), (to, choice) in itertools.product(enumerate(tokens), enumerate(choices)):
        if at != to:
            for number in ("1", "2"):
                data = {**choice, "token": token, "number": number}
                assert shop.web.post(CHANGES[1], data=data).status_code == 409
    assert dead(shop) == ["ann", "bob"]
    data = {**choices[1], "token": tokens[1], "number": "1"}
    assert shop.web.post(CHANGES[1], data=data).status_code == 200
    assert dead(shop) == ["bob"]


@pytest.mark.parametrize("action", ["redrive", "purge"])
def test_a_job_that_has_changed_since_is_left(shop: Shop, action: str) -> None:
    key = shop.kill(shop.pay, "ann")
    questions = [asked(shop.web, action, key=key), asked(shop.web, action, cause="pay")]
    with shop.outbox.context():
        assert shop.outbox.dead.redrive(key)
    shop.clock.advance(1)
    shop.error = RuntimeError("no")
    shop.deliver()
    for data in questions:
        answer = shop.web.post(f"/userlock/outbox/{action}/now", data={**data, "number": "1"})
        assert answer.status_code == 409
    assert dead(shop) == ["ann"]


# --- views --------------------------------------------------------------------------------------


def test_the_status_and_the_lists(shop: Shop) -> None:
    key = shop.kill(shop.close_books, "ann", error=KeyError("x"))
    shop.stage(shop.pay, "ann", 7)
    shop.clock.advance(90)
    page = shop.web.get("/userlock/outbox").text
    assert "close_books KeyError" in page
    assert re.search(r"has been due for <strong>1m30s</strong>", page)
    assert "holds it up, which is dead" in page
    assert f"/userlock/outbox/{key}" in page
    document = shop.web.get("/userlock/outbox.json?dead=yes").get_json()
    assert (document["status"]["due"], document["status"]["dead"]) == (1, 1)
    assert [each["key"] for each in document["jobs"]] == [key]
    for query, count in (("owner=ann", 2), ("owner=bob", 0), ("job=pay", 1), ("cause=close", 0)):
        assert len(shop.web.get(f"/userlock/outbox.json?{query}").get_json()["jobs"]) == count, (
            query
        )


def test_one_job(shop: Shop) -> None:
    key = shop.kill(shop.pay, "ann", 7, error=KeyError("x"))
    page = shop.web.get(f"/userlock/outbox/{key}").text
    assert "pay(&#39;ann&#39;, 7)" in page
    assert "KeyError: &#39;x&#39;" in page
    for path in ("/userlock/outbox/x", "/userlock/outbox/" + "0" * 28):
        assert shop.web.get(path).status_code == 404
    with shop.outbox.context():
        pairs = ndb.Key(urlsafe=key.encode()).pairs()
        for place in ({"project": "evil"}, {"database": "evil"}, {"namespace": "no!"}):
            foreign = ndb.Key(pairs=pairs, **place).urlsafe().decode()
            assert shop.web.get(f"/userlock/outbox/{foreign}").status_code == 404
            with pytest.raises(ValueError, match="key of"):
                reading.key_of(foreign)
            for call in (shop.outbox.run, shop.outbox.cancel):
                with pytest.raises(ValueError, match="key of"):
                    call(foreign)
        ndb.transaction(ndb.Key(urlsafe=key.encode()).delete)
    assert shop.web.get(f"/userlock/outbox/{key}").status_code == 404


# --- changes ------------------------------------------------------------------------------------


def test_one_is_redriven(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    key = shop.kill(shop.pay, "ann")
    shop.kill(shop.pay, "bob")
    page = shop.web.get(f"/userlock/outbox/{key}").text
    question = shop.web.post("/userlock/outbox/redrive", data=form(page, "/outbox/redrive"))
    assert "Redrive 1 dead job?" in question.text
    assert dead(shop) == ["ann", "bob"], "it asks first"
    done = shop.web.post(CHANGES[0], data=form(question.text, "/now"))
    assert "1 job redriven" in done.text
    assert dead(shop) == ["bob"]
    assert "1 dead job redriven by olga, in the inspector" in caplog.text
    shop.deliver()
    assert len(shop.rows()) == 1, "it has run"


@pytest.mark.parametrize("action", ["redrive", "purge"])
def test_many_take_several_requests(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    monkeypatch.setattr(jobs, "_MOST_CHANGED", 10)
    owners = [f"user{number:02}" for number in range(25)]
    shop.put_dead(owners)
    shop.put_dead(["other"], job="mail")
    page = shop.web.get("/userlock/outbox").text
    page = shop.web.post(f"/userlock/outbox/{action}", data=asked_form(page, action)).text
    for left in (15, 5, 0):
        number = re.search(r"Type the number of jobs \((\d+)\)", page)
        typed = {"number": number[1]} if number else {}
        page = shop.web.post(
            f"/userlock/outbox/{action}/now", data={**form(page, f"/{action}/now"), **typed}
        ).text
        assert len(dead(shop)) == left + 1
        if left and action == "purge":
            page = shop.web.post("/userlock/outbox/purge", data=form(page, "/purge")).text
    assert dead(shop) == ["other"]
    if action == "redrive":
        assert sorted(row.redriven for row in shop.rows()) == [0, *([1] * 25)]


def asked_form(page: str, action: str) -> dict[str, str]:
    """Return the form of the cause `pay RuntimeError`."""
    wanted = {"cause": "pay RuntimeError"}
    assert (f"/userlock/outbox/{action}", wanted) in Forms(page).found
    return wanted


def test_a_request_ends_in_time(shop: Shop) -> None:
    """Each batch takes five seconds."""
    shop.put_dead([f"user{number:02}" for number in range(40)])
    data = asked(shop.web, "redrive", cause="")
    shop.engine.on_wake = lambda _: shop.clock.advance(5)
    page = shop.web.post(CHANGES[0], data=data).text
    assert len(dead(shop)) == 15
    assert "15 left" in page


def test_a_purge_needs_the_number(shop: Shop) -> None:
    shop.put_dead(["ann", "bob"])
    data = asked(shop.web, "purge", cause="pay")
    for typed in ("02", "1", "", "two", "²", "2"):
        answer = shop.web.post(CHANGES[1], data={**data, "number": typed})
        assert answer.status_code == (200 if typed == "2" else 409)
        assert len(dead(shop)) == (0 if typed == "2" else 2)


def test_a_busy_owner_is_skipped(shop: Shop) -> None:
    key = shop.kill(shop.pay, "ann")
    shop.kill(shop.pay, "bob")
    shop.service.acquire("ann")
    one = shop.web.post(CHANGES[0], data=asked(shop.web, "redrive", key=key))
    assert (one.status_code, "The owner is busy" in one.text) == (503, True)
    both = shop.web.post(CHANGES[0], data=asked(shop.web, "redrive", cause="")).text
    assert "1 skipped" in both
    assert dead(shop) == ["ann"]


# --- texts --------------------------------------------------------------------------------------


def pages_of(web: FlaskClient, key: str) -> Iterator[tuple[str, str]]:
    for path in ("/userlock/outbox", "/userlock/outbox?dead=yes", f"/userlock/outbox/{key}"):
        yield path, web.get(path).text
    for choice in ({"cause": ""}, {"key": key}):
        for action in ("redrive", "purge"):
            answer = web.post(f"/userlock/outbox/{action}", data=choice)
            assert answer.status_code == 200
            yield action, answer.text


def _filled(shop: Shop, owner: str, text: str) -> str:
    error = RuntimeError(text.encode("utf-8", "backslashreplace").decode())
    shop.kill(shop.pay, owner, text, error=error)
    key = shop.kill(shop.close_books, "ann", text, error=error)
    shop.put_dead(["eve"], job=f"job {error}", cause=f"job {error} {error}"[:300])
    shop.stage(shop.pay, owner, text)
    shop.stage(shop.pay, "ann", text)
    shop.clock.advance(60)
    return key


@pytest.mark.slow
@pytest.mark.parametrize("text", [*TEXTS, "x" * 200_000], ids=lambda text: repr(text)[:20])
def test_texts_are_shown_as_texts(shop: Shop, text: str) -> None:
    harmless: set[tuple[str, ...]] = set()
    for _, page in pages_of(shop.web, _filled(shop, "bob", "harmless")):
        harmless |= Forms(page).elements
    key = _filled(shop, text[:1_500], text)
    for path, page in pages_of(shop.web, key):
        assert Forms(page).elements <= harmless, path
        assert len(page) < 200_000
        assert not set(page) & set("\x1b\x9b\x07\u202e\u2066\u200b\0")
    for path in ("/userlock/outbox.json", "/userlock/outbox.json?dead=yes"):
        answer = shop.web.get(path)
        assert answer.text.isascii()
        assert answer.get_json()


@pytest.mark.parametrize("form_of_ids", ["plain", "masked", "hashed"])
def test_hidden_owners_are_on_no_page(shop: Shop, form_of_ids: str) -> None:
    userlock.configure(show_ids=form_of_ids, id_key="secret")
    key = shop.kill(shop.close_books, MARK, MARK, error=RuntimeError(f"no mail for {MARK}"))
    shop.stage(shop.pay, MARK)
    shop.clock.advance(60)
    name = str(shop.row(key).key.id())
    job = shop.web.post("/userlock/outbox/show", data={"key": name, "owner": MARK})
    question = shop.web.post("/userlock/outbox/purge", data={"key": name, "owner": MARK})
    found = shop.web.post("/userlock/outbox/find", data={"owner": MARK, "dead": "yes"})
    shown = [
        job,
        question,
        shop.web.get("/userlock/outbox"),
        shop.web.get("/userlock/outbox?dead=yes"),
    ]
    shown += [shop.web.get("/userlock/outbox.json"), shop.web.get("/userlock/outbox.json?dead=yes")]
    text = "".join(each.text for each in shown)
    assert all(each.status_code == 200 for each in [*shown, found])
    assert (MARK in text) is (form_of_ids == "plain"), "plain is the control"
    assert (key in text) is (form_of_ids == "plain"), "a key contains the owner"
    assert (MARK in found.text) is (form_of_ids == "plain")
    assert name in found.text or form_of_ids == "plain"
    assert ">Key</th>" in found.text, "the page asks for it"
    data = {**form(question.text, "/now"), "number": "1"}
    refused = shop.web.post(CHANGES[1], data={**data, "owner": "somebody"})
    assert refused.status_code == (200 if form_of_ids == "plain" else 409)
    done = shop.web.post(CHANGES[1], data={**data, "owner": MARK})
    assert done.status_code == (409 if form_of_ids == "plain" else 200)
    assert dead(shop) == []


def test_datastore_does_not_answer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.api_core.exceptions import ServiceUnavailable

    def fail(*args: object, **options: object) -> None:
        raise ServiceUnavailable("connection <refused>")

    monkeypatch.setattr("userlock.outbox.listing.take_status", fail)
    answer = shop.web.get("/userlock/outbox")
    assert answer.status_code == 503
    assert "Datastore does not answer" in answer.text
    assert "<refused>" not in answer.text
