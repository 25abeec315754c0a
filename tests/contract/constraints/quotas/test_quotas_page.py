"""The examples in docs/names.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.documents import Page
from userlock.stores import MemoryStore

PAGE = Page("docs/names.md")
QUOTA = PAGE.take("python", "project_quota = Quota")
NIGHTLY = PAGE.take("python", "def nightly")


@pytest.fixture
def names(ndb_client: ndb.Client) -> Iterator[dict[str, Any]]:
    """Run the page's code."""
    userlock.configure(service=userlock.LockService(MemoryStore()))
    names = NIGHTLY.run(QUOTA.run({"__name__": "quotas"}))
    with ndb_client.context(cache_policy=False):
        yield names
    names["outbox"].close()


def run_jobs(names: dict[str, Any]) -> None:
    (engine,) = names["outbox"].engines
    assert engine.wait_until_idle(30)


def flags(names: dict[str, Any]) -> list[bool]:
    return [each.over_quota for each in names["active_projects"]("ann")]


def test_projects_over_the_limit(names: dict[str, Any]) -> None:
    project = names["Project"]
    keys = [ndb.Key("User", "ann", project, number + 1) for number in range(4)]

    @ndb.transactional()
    def create(key: Any) -> None:
        project(key=key).put()
        names["project_quota"].stamp("ann")

    with userlock.global_lock("ann"):
        for key in keys:
            create(key)
    run_jobs(names)
    assert flags(names) == [False, False, False, True]
    names["set_active"]("ann", keys[0], False)
    run_jobs(names)
    assert flags(names) == [False, False, False]
    names["set_active"]("ann", keys[0], True)
    run_jobs(names)
    assert flags(names) == [False, False, False, True]
    assert names["nightly"]() == 0
    with userlock.global_lock("ann"):
        names["User"](id="ann", plan="plus").put()
    assert names["nightly"]() == 1
    run_jobs(names)
    assert flags(names) == [False] * 4
