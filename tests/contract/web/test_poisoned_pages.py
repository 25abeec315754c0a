"""Test the inspector with all kinds of values under locks' keys: it shows them as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser

import flask
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.poison import TEXTS, unhurried, values
from userlock.contrib.inspector import Inspector
from userlock.events import LISTENERS
from userlock.lock.record import BlockedOn, blocked, joining
from userlock.lock.service import LockService
from userlock.stores import MemoryStore
from userlock.testing import ManualClock, make_claim

PAGES = ("/userlock/locks", "/userlock/contention")
lock_ids = st.just("ann") | st.sampled_from(TEXTS)


class Elements(HTMLParser):
    """The elements of a page, with the names of their attributes and the targets of links.

    And the characters of its texts and labels that nobody would see.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()
        self.unseen: set[str] = set()
        self.feed(page)
        self.close()

    def handle_data(self, data: str) -> None:
        self.unseen |= {each for each in data if not each.isprintable() and each not in "\n\t"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, text in attrs:
            if name != "value":  # comes back with its form
                self.handle_data(text or "")
        self.found.add((tag, *sorted(name for name, _ in attrs)))
        self.found |= {(name, str(to)) for name, to in attrs if name in ("href", "action", "src")}


class Site:
    """An app with the inspector on one store."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(clock=self.clock)
        service = LockService(self.store, clock=self.clock, outage="fail")
        self.app = flask.Flask(__name__)
        before = LISTENERS._listeners
        Inspector(lambda request: "olga").init_app(self.app, service)
        LISTENERS._listeners = before
        self.client = self.app.test_client()

    def poison(self, lock_id: str, value: bytes) -> None:
        self.store.forget_everything()
        assert self.store.create(lock_id, value, 60.0) is not None

    def pages(self, lock_id: str) -> Iterator[str]:
        for path in PAGES:
            answer = self.client.get(path)
            assert answer.status_code == 200
            yield answer.text
        sent = lock_id.encode("utf-8", "backslashreplace")  # as in the form
        answer = self.client.post("/userlock/break", data={"lock_id": sent})
        assert answer.status_code == 200
        yield answer.text

    def unseen(self, lock_id: str) -> set[str]:
        return set().union(*(Elements(page).unseen for page in self.pages(lock_id)))

    def elements(self, lock_id: str) -> set[tuple[str, ...]]:
        return set().union(*(Elements(page).found for page in self.pages(lock_id)))


@pytest.fixture(scope="module")
def site() -> Site:
    return Site()


@pytest.fixture(scope="module")
def harmless(site: Site) -> set[tuple[str, ...]]:
    """Return the elements that harmless records lead to."""
    claim = make_claim("ann", request="GET /")
    on = blocked(claim.token, BlockedOn("ben", 1.0, "4f05"))
    found: set[tuple[str, ...]] = set()
    for record in (
        b"",
        claim.record + on + joining(make_claim("ann", request="/").holder),
    ):
        site.poison("ann", record)
        found |= site.elements("ann")
    site.store.forget_everything()
    return found | site.elements("ann")


@unhurried
@given(lock_ids, values)
@example("\ud800", b"")
@example("ann", b'["4f01","interactive",1,60,"web","GET /"]\n! 4f01 ["\\ud800",1,"4f05"]')
@example("ann", b'["4f01","interactive",-1.5e308,60,"web","GET /"]\n+i 4f02 -1e308 ["a","b"]')
def test_the_pages_have_no_element_or_attribute_of_its_own(
    site: Site, harmless: set[tuple[str, ...]], lock_id: str, value: bytes
) -> None:
    site.poison(lock_id, value)
    assert site.elements(lock_id) <= harmless
    assert site.unseen(lock_id) == set()


def no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@unhurried
@given(lock_ids, values)
def test_the_document_is_json(site: Site, lock_id: str, value: bytes) -> None:
    site.poison(lock_id, value)
    answer = site.client.get("/userlock/locks.json")
    assert answer.status_code == 200
    assert answer.mimetype == "application/json"
    json.loads(answer.text, parse_constant=no_json)
    assert answer.text.isascii()


@pytest.mark.parametrize("text", [text for text in TEXTS if "<" in text])
def test_without_escaping_elements_are_found(harmless: set[tuple[str, ...]], text: str) -> None:
    """The negative control."""
    site = Site()
    site.app.jinja_env.autoescape = False
    site.poison("ann", make_claim("ann", request=text).record)
    assert not site.elements("ann") <= harmless


@pytest.mark.parametrize("lock_id", ["x" * 1_500, "🔒" * 1_500], ids=ascii)
def test_pages_of_long_lock_ids(lock_id: str) -> None:
    site = Site()
    for number in range(100):
        site.store.create(f"{number}{lock_id}"[:1500], make_claim("ann").record, 60)
    site.store.create("z" * 10**6, b"forged", 60)
    for end in ("", ".json"):
        answer = site.client.get(f"/userlock/locks{end}")
        assert answer.status_code == 200
        assert len(answer.text) < 4_000_000
