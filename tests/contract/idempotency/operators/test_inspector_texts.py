"""Test the inspector's pages of requests: hostile texts, hidden ids, malformed rows, outages."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from flask.testing import FlaskClient
from google.api_core.exceptions import ServiceUnavailable
from google.cloud import datastore as plain_datastore
from google.cloud import ndb

import userlock
from tests.contract.idempotency.conftest import KEY, rows
from tests.contract.idempotency.operators.conftest import NOW, Shop, asked, document, named
from tests.contract.outbox.operators.test_inspector import Forms
from tests.poison import TEXTS
from userlock.admin import requests as reading
from userlock.ndb.owners import moment_of

pytestmark = pytest.mark.slow

MARK = "zoe.marker+7@example.org"

# --- texts --------------------------------------------------------------------------------------


def pages_of(web: FlaskClient, user: str, key: str) -> Iterator[tuple[str, str]]:
    for path in ("/userlock/requests", "/userlock/locks"):
        yield path, web.get(path).text
    yield "find", web.post("/userlock/requests/find", data=named(user, key)).text
    for path in ("show", "complete"):
        answer = web.post(f"/userlock/requests/{path}", data=named(user, key))
        assert answer.status_code in (200, 409)
        yield path, answer.text


def _filled(shop: Shop, user: str, text: str) -> None:
    """Store unfinished and finished requests whose every text is foreign."""
    shop.leave(user)
    shop.leave(user, f"{KEY}-2")
    with shop.client.context():
        for row in rows():
            if row.user == user:
                row.path = row.method = text
                row.points = json.dumps([{"name": text, "asked": True}] * 3)
                if row.idempotency_key != KEY:
                    row.flow, row.status, row.body, row.headers = text, 200, b"", []
                    row.finished_at = row.begun_at
                    row.expire_at = moment_of(row.begun_at + 3_600_000_000)
                row.put()


@pytest.mark.parametrize("text", [*TEXTS[:-2], "x" * 50_000], ids=lambda text: repr(text)[:20])
def test_texts_are_shown_as_texts(shop: Shop, text: str) -> None:
    harmless: set[tuple[str, ...]] = set()
    shop.leave("eve")
    for user in ("bob", "eve"):
        if user == "bob":
            _filled(shop, user, "harmless")
        for _, page in pages_of(shop.web, user, KEY):
            harmless |= Forms(page).elements
    user = text[:1_500]
    _filled(shop, user, text)
    for path, page in pages_of(shop.web, user, KEY):
        assert Forms(page).elements <= harmless, path
        assert len(page) < 100_000
        assert not set(page) & set("\x1b\x9b\x07\u202e\u2066\u200b\0")
    answer = shop.web.get("/userlock/requests.json")
    assert (answer.status_code, answer.text.isascii()) == (200, True)


@pytest.mark.parametrize("form_of_ids", ["plain", "masked", "hashed"])
def test_hidden_users_are_on_no_page(
    shop: Shop, form_of_ids: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"payment-of-{MARK}"
    shop.leave(MARK, key)
    shop.leave("eve")
    shop.ask(MARK, f"{key}-2")
    with shop.client.context():
        (row,) = (each for each in rows() if each.idempotency_key == key)
        row.method, row.path = "POST", f"/users/{MARK}"
        row.put()
    caplog.clear()
    userlock.configure(show_ids=form_of_ids, id_key="secret")
    plain = form_of_ids == "plain"
    shown = [text for _, text in pages_of(shop.web, MARK, key)]
    shown += [shop.web.get("/userlock/requests.json").text]
    assert (MARK in "".join(shown)) is plain, "plain is the control"
    question = asked(shop.web, MARK, key)
    named_by = {"user", "key", "namespace"} if plain else {"namespace"}
    assert set(question) == {*named_by, "stamp"}
    answer = shop.web.post(NOW, data={**named(MARK, key), **question})
    assert answer.status_code == 200
    assert MARK in shop.sold
    assert (MARK in answer.text + caplog.text) is plain


# --- malformed rows -----------------------------------------------------------------------------

#: Changed fields, or properties.
MALFORMED: dict[str, dict[str, Any]] = {
    "a time that is a text": {"begun_at": "yesterday"},
    "a time far away": {"begun_at": 2**62, "claimed_until": -(2**62)},
    "a time that is no number": {"begun_at": float("nan")},
    "attempts that are a text": {"attempts": "<b>three"},
    "a status that is a text": {"status": "<b>"},
    "a status of a finished one without expiry": {"status": 200},
    "an expiry that is a text": {"expire_at": "never"},
    "no times": {"begun_at": None, "claimed_until": None, "attempts": None, "token": None},
    "points that are no JSON": {"points": "{"},
    "points that are no text": {"points": 7},
    "points of another form": {"points": '{"name": 7}'},
    "parameters that are no JSON": {"params": "{"},
    "no user": {"user": None},
    "another user than that of its key": {"user": "zoe"},
    "a user that is a number": {"user": 7},
    "a key that is a number": {"idempotency_key": 7},
    "a flow that is a number": {"flow": 7, "path": 7, "method": 7},
    "a standing of its own": {"standing": "open|00|~"},
    "data that are not compressed": {"data": b"{}"},
    "data that are no JSON": {"data": zlib.compress(b"{")},
    "data that are no object": {"data": zlib.compress(b"[]")},
    "no data": {"data": None},
    "an empty entity": {},
}


@pytest.mark.parametrize("changed", MALFORMED)
def test_a_malformed_row_hides_no_other(shop: Shop, ndb_client: ndb.Client, changed: str) -> None:
    shop.leave("ann")
    shop.leave("bob", f"{KEY}-bob")
    with shop.client.context():
        (key,) = (row.key for row in rows() if row.user == "ann")
    client = plain_datastore.Client(project=ndb_client.project)
    healthy = client.get(key._key)
    unindexed = tuple(healthy.exclude_from_indexes)
    entity = plain_datastore.Entity(key._key, exclude_from_indexes=unindexed)
    properties = {each: value for each, value in MALFORMED[changed].items() if each in healthy}
    fields = {each: MALFORMED[changed][each] for each in MALFORMED[changed].keys() - properties}
    if fields:
        data = json.loads(zlib.decompress(healthy["data"])) | fields
        properties["data"] = zlib.compress(json.dumps(data).encode())
    entity.update({**healthy, **properties} if properties else {"standing": healthy["standing"]})
    client.put(entity)
    for path in ("/userlock/requests", "/userlock/requests?user=ann"):
        answer = shop.web.get(path)
        assert answer.status_code == 200
        assert "<b>" not in answer.text
    assert "bob" in [each["user"] for each in document(shop.web)["unfinished"]]
    for path in ("show", "complete", "complete/now"):
        answer = shop.web.post(f"/userlock/requests/{path}", data=named())
        assert answer.status_code in (200, 409)
    assert "Request completed" in shop.web.post(NOW, data=asked(shop.web, "bob", f"{KEY}-bob")).text


# --- outages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "method", "path"),
    [
        ("listed", "GET", "/userlock/requests"),
        ("read", "POST", "/userlock/requests/show"),
        ("read", "POST", "/userlock/requests/complete"),
        ("read", "POST", NOW),
    ],
)
def test_datastore_does_not_answer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, function: str, method: str, path: str
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ServiceUnavailable("connection <refused>")

    monkeypatch.setattr(reading, function, fail)
    answer = shop.web.open(path, method=method, data=named() if method == "POST" else None)
    assert answer.status_code == 503
    assert "Datastore does not answer" in answer.text
    assert "<refused>" not in answer.text
    assert "Back to the requests" in answer.text
