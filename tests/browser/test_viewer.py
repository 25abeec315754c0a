"""The emulator's viewer in a real browser: its pages in both schemes, its forms without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import datastore
from playwright.sync_api import expect

import userlock_emulator
from tests.browser.access import assert_usable
from tests.browser.conftest import LOOKS, OpenWindow
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator.datastore import locks


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[userlock_emulator.Emulator]:
    """Start an emulator with entities and a fault. A request waits as long as the test takes."""
    monkeypatch.setattr(locks, "LOCK_TIMEOUT_SECONDS", 3600.0)
    with userlock_emulator.start(project="shop", edit=True) as running:
        for name, text in running.env.items():
            monkeypatch.setenv(name, text)
        client = datastore.Client()
        entities = []
        for number in range(60):
            entity = datastore.Entity(
                client.key("Order", number + 1), exclude_from_indexes=["note"]
            )
            entity.update(total=number, note="<b>bold</b> " * 40, tags=["a", None, {"deep": 1.5}])
            entities.append(entity)
        client.put_multi(entities)
        running.faults.abort(2, kind="Invoice")
        running.faults.delay(0.5, rpc="AllocateIds")
        yield running


def stuck(client: datastore.Client) -> Any:
    """Begin a transaction that has read orders and does not end."""
    transaction = client.transaction()
    transaction.begin()
    client.get_multi([client.key("Order", n) for n in (1, 2, 3)], transaction=transaction)
    return transaction


@LOOKS
def test_every_page(
    open_window: OpenWindow,
    emulator: userlock_emulator.Emulator,
    screenshots: Path,
    device: str,
    scheme: Any,
) -> None:
    page = open_window(emulator.viewer_url, device, scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))

    def look(at: str) -> None:
        assert_usable(page, screenshots / f"viewer-{at}-{device}-{scheme}.png")

    page.goto("")
    look("kinds")
    page.get_by_role("link", name="Order", exact=True).click()
    look("kind")
    page.get_by_role("link", name="Order, 1", exact=True).click()
    look("entity")
    page.get_by_role("link", name="Edit", exact=True).click()
    look("edit")
    page.goto("query?gql=SELECT * FROM Order WHERE total > 5")
    page.get_by_text("Query by form").click()
    look("query")
    page.get_by_role("link", name="Faults").click()
    look("faults")
    page.get_by_role("link", name="Reset…").click()
    look("reset")
    client = datastore.Client()
    transaction = stuck(client)
    writer = Started(lambda: client.put(datastore.Entity(client.key("Order", 1))))
    wait_until(lambda: emulator.waiting)
    page.get_by_role("link", name="Transactions").click()
    expect(page.get_by_text("1 request waits for this transaction")).to_be_visible()
    look("transactions")
    transaction.rollback()
    writer.result()
    # The policy against scripts and foreign styles refused nothing of the page's own.
    assert not said


def test_an_entity_is_edited_and_deleted_without_scripts(
    open_window: OpenWindow, emulator: userlock_emulator.Emulator
) -> None:
    plain, client = open_window(emulator.viewer_url, scripts=False), datastore.Client()
    plain.goto("")
    plain.get_by_label("Find a key").fill("Order, 7")
    plain.get_by_role("button", name="Find").click()
    plain.get_by_role("link", name="Edit").click()
    box = plain.get_by_label("Entity, in the JSON of the REST API")
    box.fill(box.input_value().replace('"integerValue": "6"', '"integerValue": "66"'))
    plain.get_by_role("button", name="Save").click()
    expect(plain.get_by_role("status")).to_have_text("Saved.")
    stored = client.get(client.key("Order", 7))
    assert stored is not None
    assert stored["total"] == 66
    plain.get_by_role("link", name="Delete").click()
    plain.get_by_role("button", name="Delete").click()
    expect(plain.get_by_role("status")).to_have_text("Deleted.")
    assert client.get(client.key("Order", 7)) is None
