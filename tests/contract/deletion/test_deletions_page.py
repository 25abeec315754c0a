"""The examples in docs/deletions.md."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.documents import Page
from userlock.deletion import tree as tree_module
from userlock.stores import MemoryStore

PAGE = Page("docs/deletions.md")
TREE = PAGE.take("python", "project_tree = Tree")
PROGRESS = PAGE.take("python", "def progress")


@pytest.fixture
def names(
    ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[dict[str, Any]]:
    """Run the page's code."""
    monkeypatch.setattr(tree_module, "_trees", {})  # kinds of other pages have the same names
    userlock.configure(service=userlock.LockService(MemoryStore()))
    names = PROGRESS.run(TREE.run({"__name__": "deletions"}))
    names["FILES"] = tmp_path
    with ndb_client.context(cache_policy=False):
        yield names
    names["outbox"].close()


def test_a_project_with_screens(names: dict[str, Any], tmp_path: Path) -> None:
    project = ndb.Key("User", "ann", "Project", 1)
    with userlock.global_lock("ann"):
        names["Project"](key=project, title="Summer").put()
        screen = names["Screen"](parent=project)
        screen.put()
        (tmp_path / "a").write_text("a picture")
        names["Version"](user_id="ann", screen=screen.key, file="a").put()
        id_ = names["delete_project"]("ann", project)
        assert project.get() is None
        assert names["progress"]("ann", id_) == "0 deleted so far. "
        assert names["running"]("ann") == [id_]
    (engine,) = names["outbox"].engines
    names["outbox"].relay()
    assert engine.wait_until_idle(30)
    assert names["progress"]("ann", id_) == "all is gone"
    assert names["running"]("ann") == []
    assert list(tmp_path.iterdir()) == []
    assert names["Version"].query().count() == 0
