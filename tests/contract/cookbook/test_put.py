"""docs/cookbook.md: its code, and its table of crashes."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import userlock_emulator
from tests.contract.cookbook.conftest import BEFORE_AND_AFTER, Cook, ending
from tests.documents import Page

PAGE = Page("docs/cookbook.md")
CODE = PAGE.take("python", "def put_project")
PATH = f"/projects/{uuid.uuid4()}"


@pytest.fixture
def names(cook: Cook) -> dict[str, Any]:
    return cook(CODE)


def put(names: dict[str, Any], title: Any = "Summer") -> int:
    names["app"].secret_key = "test"
    client = names["app"].test_client()
    with client.session_transaction() as session:
        session["user_id"] = "ann"
    status: int = client.put(PATH, json={"title": title}).status_code
    return status


def test_twice(names: dict[str, Any]) -> None:
    assert names["app"].test_client().put(PATH, json={"title": "Summer"}).status_code == 401
    assert [put(names) for _ in range(3)] == [201, 200, 200]
    assert put(names, "Winter") == 409
    assert {put(names, title) for title in (None, 7, "x" * 1501, "\ud800")} == {400}
    assert names["Project"].query().count() == 1


def test_a_lost_reply(names: dict[str, Any], datastore: userlock_emulator.Emulator) -> None:
    datastore.faults.drop_reply()
    assert [put(names), put(names)] == [201, 200]
    assert names["Project"].query().count() == 1


@BEFORE_AND_AFTER
def test_a_crash(names: dict[str, Any], after: bool) -> None:
    with ending(names["Project"], "put", after=after):
        put(names)
    assert put(names) == (200 if after else 201)
    assert names["Project"].query().count() == 1
