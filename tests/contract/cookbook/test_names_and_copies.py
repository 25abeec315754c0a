"""docs/cookbook/unique-names.md and copies.md: their code, and their tables of crashes."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.cookbook.conftest import Cook, Died
from tests.documents import Page

NAMES = Page("docs/cookbook/unique-names.md")
COPIES = Page("docs/cookbook/copies.md")
NAMES_CODE = NAMES.take("python", "def create_project")
COPIES_CODE = COPIES.take("python", "def activate_project")


def titles(names: dict[str, Any]) -> list[str]:
    return sorted(each.title for each in names["Project"].query() if not each.archived)


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_a_form_that_is_sent_twice(
    cook: Cook, datastore: userlock_emulator.Emulator, dropped: int
) -> None:
    names = cook(NAMES_CODE)
    if dropped:
        datastore.faults.drop_reply(dropped)
    assert "has begun" in names["create_project"]("ann", "Summer")
    assert "There already is" in names["create_project"]("ann", "SUMMER")
    assert titles(names) == ["Summer"]


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_of_a_rename(cook: Cook, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    names = cook(NAMES_CODE)
    project = names["Project"]
    with userlock.global_lock("ann"):
        key = project(parent=ndb.Key("User", "ann"), title="Summer").put()
    plain = project.put

    def dying(self: Any) -> None:
        if after:
            plain(self)
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(project, "put", dying)
        with pytest.raises(Died):
            names["rename_project"]("ann", key.id(), "Winter")
    free, taken = ("Summer", "Winter") if after else ("Winter", "Summer")
    assert "There already is" in names["create_project"]("ann", taken)
    assert "has begun" in names["create_project"]("ann", free)
    names["rename_project"]("ann", key.id(), taken)


def archived(names: dict[str, Any], title: str) -> Any:
    with userlock.global_lock("ann"):
        return names["Project"](parent=ndb.Key("User", "ann"), title=title, archived=True).put()


def test_copies(cook: Cook) -> None:
    names = cook(COPIES_CODE)
    keys = [archived(names, "Summer") for _ in range(3)]
    got = [names["activate_project"]("ann", key) for key in keys]
    assert got == ["Summer", "Summer (Copy 1)", "Summer (Copy 2)"]
    assert names["activate_project"]("ann", keys[1]) == "Summer (Copy 1)", "sent again"
    assert names["duplicate_project"]("ann", keys[1]) == "Summer (Copy 3)"


def test_a_crash_of_an_activation(cook: Cook, monkeypatch: pytest.MonkeyPatch) -> None:
    names = cook(COPIES_CODE)
    first, second = (archived(names, "Summer") for _ in range(2))
    names["activate_project"]("ann", first)
    plain = names["put_as_copy"]

    def dying(*args: Any) -> None:
        plain(*args)
        raise Died

    monkeypatch.setitem(names, "put_as_copy", dying)
    with pytest.raises(Died):
        names["activate_project"]("ann", second)
    monkeypatch.setitem(names, "put_as_copy", plain)
    assert names["activate_project"]("ann", second) == "Summer (Copy 1)"
    assert titles(names) == ["Summer", "Summer (Copy 1)"]
