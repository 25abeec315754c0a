"""The examples of writes in docs/fencing.md."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
import sys
from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from tests.documents import Page

PAGE = Page("docs/fencing.md")
MODEL = PAGE.take("python", "WriteIdProperty")
ALLOCATED = PAGE.take("python", "allocate_ids")
DOCTOR = PAGE.take("sh", "userlock doctor")


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
    names: dict[str, Any], datastore: userlock_emulator.Emulator
) -> None:
    with userlock.global_lock("ann"):
        learner = names["Learner"](id="ann")
        datastore.faults.drop_reply(kind="Learner")
        learner.put()
        learner.put()  # and the object can be put again


@pytest.mark.usefixtures("context", "quick_retries")
def test_a_key_of_its_own(names: dict[str, Any], datastore: userlock_emulator.Emulator) -> None:
    with userlock.global_lock("ann"):
        datastore.faults.drop_reply(kind="VideoLog")
        ALLOCATED.run(names)
        assert names["VideoLog"].query().count() == 1


@pytest.mark.usefixtures("context", "quick_retries")
def test_without_one_it_is_in_doubt(
    names: dict[str, Any], datastore: userlock_emulator.Emulator
) -> None:
    """The negative control."""
    with userlock.global_lock("ann"):
        datastore.faults.drop_reply(kind="VideoLog")
        with pytest.raises(userlock.CommitInDoubt):
            names["VideoLog"](learner_id="ann").put()


def test_the_command(datastore: userlock_emulator.Emulator) -> None:
    program, *arguments = shlex.split(DOCTOR.text)
    assert program == "userlock"
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        env={**os.environ, **datastore.env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "base_version" in done.stdout
