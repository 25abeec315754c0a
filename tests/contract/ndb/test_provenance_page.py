"""The example of a read in docs/fencing.md. The table: ways/test_docs.py."""

from __future__ import annotations

import dataclasses

import pytest
from google.cloud import ndb

import userlock
from tests.contract.ndb.models import Learner
from tests.documents import Block, Page

PAGE = Page("docs/fencing.md")
ASKED_BEFORE = PAGE.take("python", "get_async")


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
