"""The examples in docs/fencing.md. The table: ways/test_table.py."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Learner
from tests.documents import Block, Page
from tests.interpreters import run_python
from userlock_emulator import Emulator

PAGE = Page("docs/fencing.md")
MODEL = PAGE.take("python", "WriteIdProperty")
ALLOCATED = PAGE.take("python", "allocate_ids")
ASKED_BEFORE = PAGE.take("python", "get_async")


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Provide the page's model, and another one."""
    # ndb knows one class per kind in a process; the page's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    video_log = """
class VideoLog(userlock.UserModel):
    _lock_id = "learner_id"
    learner_id = ndb.StringProperty()
    write_id = userlock.WriteIdProperty()
"""
    both = dataclasses.replace(MODEL, text=MODEL.text + video_log)
    return both.run({"__name__": "page", "ndb": ndb, "userlock": userlock})


@pytest.mark.usefixtures("context", "quick_retries")
def test_a_write_is_recognised_after_a_lost_reply(
    names: dict[str, Any], datastore: Emulator
) -> None:
    with userlock.global_lock("ann"):
        learner = names["Learner"](id="ann")
        datastore.faults.drop_reply(kind="Learner")
        learner.put()
        learner.put()  # and the object can be put again


@pytest.mark.usefixtures("context", "quick_retries")
def test_a_key_of_its_own(names: dict[str, Any], datastore: Emulator) -> None:
    with userlock.global_lock("ann"):
        datastore.faults.drop_reply(kind="VideoLog")
        ALLOCATED.run(names)
        assert names["VideoLog"].query().count() == 1


@pytest.mark.usefixtures("context", "quick_retries")
def test_without_one_it_is_in_doubt(names: dict[str, Any], datastore: Emulator) -> None:
    """The negative control."""
    with userlock.global_lock("ann"):
        datastore.faults.drop_reply(kind="VideoLog")
        with pytest.raises(userlock.CommitInDoubt):
            names["VideoLog"](learner_id="ann").put()


def test_the_self_test(datastore: Emulator) -> None:
    done = run_python("-m", "userlock", "doctor", "--datastore", env=datastore.env)
    assert done.returncode == 0, done.stderr
    assert "base_version" in done.stdout


# --- reads --------------------------------------------------------------------------------------


def run(block: Block) -> None:
    with userlock.global_lock("ann"):
        Learner(id="ann").put()
    ndb.get_context().cache.clear()
    keys = {"learner_key": ndb.Key(Learner, "ann"), "other_key": ndb.Key(Learner, "bob")}
    block.run({"userlock": userlock, **keys})


@pytest.mark.usefixtures("context")
def test_a_look_up_sent_before_the_lock_is_not_read_under_it() -> None:
    with pytest.raises(userlock.ReadWithoutLock):
        run(ASKED_BEFORE)


@pytest.mark.usefixtures("context")
def test_without_the_second_line_it_lands() -> None:
    lines = ASKED_BEFORE.text.splitlines(keepends=True)
    assert lines[1].startswith("other_key.get()")
    run(dataclasses.replace(ASKED_BEFORE, text="".join([lines[0], *lines[2:]])))
