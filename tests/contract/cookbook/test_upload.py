"""docs/cookbook.md: its code, and its table of crashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.cookbook.conftest import BEFORE_AND_AFTER, Cook, ending
from tests.documents import Page
from userlock.outbox.rows import JobRow, decoded

PAGE = Page("docs/cookbook.md")
CODE = PAGE.take("python", "def upload")


@pytest.fixture
def names(cook: Cook) -> Iterator[dict[str, Any]]:
    names = cook(CODE)
    yield names
    names["outbox"].close()


def upload(names: dict[str, Any], name: str = "home.png") -> Any:
    return names["upload"]("ann", ndb.Key("User", "ann", "Project", 1), name, b"a picture")


def sweep_all(names: dict[str, Any]) -> None:
    """Run the sweeps, as after an hour."""
    for row in JobRow.query(namespace=""):
        (owner, file), _ = decoded(row.arguments)
        names["sweep"](owner, file)


def test_a_screen_keeps_its_file(
    names: dict[str, Any], datastore: userlock_emulator.Emulator
) -> None:
    datastore.faults.drop_reply(kind="Screen")
    screen = upload(names)
    sweep_all(names)
    assert list(names["FILES"]) == [screen.file]


def test_a_second_one_is_refused_and_its_file_swept(names: dict[str, Any]) -> None:
    first = upload(names)
    with pytest.raises(userlock.NotUnique) as caught:
        upload(names, "HOME@2x.jpg")
    assert caught.value.holder == first.key
    assert len(names["FILES"]) == 2
    sweep_all(names)
    assert list(names["FILES"]) == [first.file]


@BEFORE_AND_AFTER
def test_a_crash(names: dict[str, Any], after: bool) -> None:
    with ending(names["Screen"], "put", after=after):
        upload(names)
    assert len(names["FILES"]) == 1
    sweep_all(names)
    assert len(names["FILES"]) == names["Screen"].query().count() == int(after)
