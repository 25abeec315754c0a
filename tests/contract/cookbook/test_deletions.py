"""docs/deletions.md: its table of crashes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.cookbook.conftest import Cook, ending
from tests.documents import Page
from userlock.deletion import unfinished

PAGE = Page("docs/deletions.md")
CODE = PAGE.take("python", "def delete_project")
KEY = ("User", "ann", "Project", 1)


@pytest.fixture
def names(cook: Cook, tmp_path: Path) -> Any:
    names = cook(CODE)
    names["FILES"] = tmp_path
    with userlock.global_lock("ann"):
        names["Project"](key=ndb.Key(*KEY)).put()
        for number in range(3):
            screen = names["Screen"](parent=ndb.Key(*KEY)).put()
            (tmp_path / f"{number}").write_text("a file")
            names["Version"](user_id="ann", screen=screen, file=f"{number}").put()
    yield names
    names["outbox"].close()


@pytest.mark.parametrize("crash", ["none", "lost reply", "before the commit", "after the commit"])
def test_crashes(
    names: dict[str, Any], datastore: userlock_emulator.Emulator, tmp_path: Path, crash: str
) -> None:
    def delete() -> None:
        names["delete_project"]("ann", ndb.Key(*KEY))

    if crash == "before the commit":
        with ending(names["project_tree"], "_on_delete", error=LookupError):
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
    assert names["Screen"].query().count() == names["Version"].query().count() == left
    assert len(list(tmp_path.iterdir())) == left
    assert list(unfinished()) == []
