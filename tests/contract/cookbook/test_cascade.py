"""docs/cookbook/cascade.md: its code, and its table of crashes."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.contract.cookbook.conftest import Cook, Died
from tests.documents import Page
from tests.waiting import wait_until
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


def finish(names: dict[str, Any]) -> None:
    """Let the relay find the jobs, and wait for them."""
    (engine,) = names["outbox"].engines
    names["outbox"].relay()
    assert engine.wait_until_idle(30)


def is_gone(names: dict[str, Any]) -> bool:
    return not (
        ndb.Key(*KEY).get() or names["Screen"].query().count() or names["FILES"] or [*unfinished()]
    )


def test_all_of_it_goes(names: dict[str, Any]) -> None:
    names["delete_project"]("ann", ndb.Key(*KEY))
    names["delete_project"]("ann", ndb.Key(*KEY))
    wait_until(lambda: is_gone(names), 60)  # the second job waits for the first one's lock


def test_a_lost_reply(names: dict[str, Any], datastore: userlock_emulator.Emulator) -> None:
    datastore.faults.drop_reply(kind="Project")
    names["delete_project"]("ann", ndb.Key(*KEY))
    finish(names)
    assert is_gone(names)


def test_a_crash_before_the_commit(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def die(owner: str) -> None:
        raise LookupError

    with monkeypatch.context() as patch:
        patch.setattr(names["tree"], "_on_delete", die)
        with pytest.raises(LookupError):
            names["delete_project"]("ann", ndb.Key(*KEY))
    finish(names)
    assert ndb.Key(*KEY).get() is not None
    assert names["Screen"].query().count() == len(names["FILES"]) == 3
    assert list(unfinished()) == []


def test_a_crash_after_the_commit(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = names["delete_tree"]

    def dying(key: Any) -> None:
        plain(key)
        raise Died

    monkeypatch.setitem(names, "delete_tree", dying)
    with pytest.raises(Died):
        names["delete_project"]("ann", ndb.Key(*KEY))
    finish(names)
    assert is_gone(names)
