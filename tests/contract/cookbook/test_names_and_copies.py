"""docs/names.md: a form sent twice, crashes, and copies."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.cookbook.conftest import BEFORE_AND_AFTER, Cook, ending
from tests.documents import Page

PAGE = Page("docs/names.md")
NAMES_CODE = PAGE.take("python", "def create_project")
COPIES_CODE = PAGE.take("python", "def activate_project")


def titles(names: dict[str, Any]) -> list[str]:
    return sorted(each.title for each in names["Project"].query() if not each.archived)


@pytest.mark.parametrize("dropped", [0, 2])
def test_a_form_that_is_sent_twice(
    cook: Cook, datastore: userlock_emulator.Emulator, dropped: int
) -> None:
    names = cook(NAMES_CODE)
    if dropped:
        datastore.faults.drop_reply(dropped)
    names["create_project"]("ann", "Summer")
    with pytest.raises(userlock.NotUnique):
        names["create_project"]("ann", "SUMMER")
    assert titles(names) == ["Summer"]


@BEFORE_AND_AFTER
def test_a_crash_of_a_rename(cook: Cook, after: bool) -> None:
    names = cook(NAMES_CODE)
    with userlock.global_lock("ann"):
        key = names["Project"](parent=ndb.Key("User", "ann"), title="Summer").put()
    with ending(names["Project"], "put", after=after):
        names["rename_project"]("ann", key.id(), "Winter")
    free, taken = ("Summer", "Winter") if after else ("Winter", "Summer")
    with pytest.raises(userlock.NotUnique):
        names["create_project"]("ann", taken)
    names["create_project"]("ann", free)
    names["rename_project"]("ann", key.id(), taken)


def archived(names: dict[str, Any], title: str) -> Any:
    with userlock.global_lock("ann"):
        return names["Project"](parent=ndb.Key("User", "ann"), title=title, archived=True).put()


def test_copies(cook: Cook) -> None:
    names = COPIES_CODE.run(cook(NAMES_CODE))
    keys = [archived(names, "Summer") for _ in range(3)]
    assert names["activate_project"]("ann", keys[0]) == "Summer"
    with ending(names, "put_as_copy", after=True):
        names["activate_project"]("ann", keys[1])
    assert names["activate_project"]("ann", keys[1]) == "Summer (Copy 1)", "sent again"
    assert names["activate_project"]("ann", keys[2]) == "Summer (Copy 2)"
    assert names["duplicate_project"]("ann", keys[1]) == "Summer (Copy 3)"
    assert titles(names) == ["Summer", *(f"Summer (Copy {number})" for number in (1, 2, 3))]
