"""docs/cookbook/cascade.md: its code, and its table of crashes."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.cookbook.conftest import Cook, ending
from tests.documents import Page
from userlock.deletion import unfinished

PAGE = Page("docs/cookbook/cascade.md")
CODE = PAGE.take("python", "def delete_project")
KEY = ("User", "ann", "Project", 1)


@pytest.fixture
def names(cook: Cook) -> Any:
    names = cook(CODE)
    with userlock.global_lock("ann"):
        names["Project"](key=ndb.Key(*KEY)).put()
        for number in range(3):
            names["FILES"][f"{number}"] = b"a file"
            names["Screen"](user_id="ann", project=ndb.Key(*KEY), file=f"{number}").put()
    yield names
    names["outbox"].close()


@pytest.mark.parametrize("crash", ["none", "lost reply", "before the commit", "after the commit"])
def test_crashes(names: dict[str, Any], datastore: userlock_emulator.Emulator, crash: str) -> None:
    def delete() -> None:
        names["delete_project"]("ann", ndb.Key(*KEY))

    if crash == "before the commit":
        with ending(names["tree"], "_on_delete", error=LookupError):
            delete()
    elif crash == "after the commit":
        with ending(names, "delete_tree", after=True):
            delete()
    else:
        if crash == "lost reply":
            datastore.faults.drop_reply(kind="Project")
        delete()
    (engine,) = names["outbox"].engines
    names["outbox"].relay()
    assert engine.wait_until_idle(30)
    left = 3 if crash == "before the commit" else 0
    assert (ndb.Key(*KEY).get() is not None) == (left > 0)
    assert names["Screen"].query().count() == len(names["FILES"]) == left
    assert list(unfinished()) == []
