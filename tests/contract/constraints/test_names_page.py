"""The examples in docs/names.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.documents import Page
from tests.unit.cli.terminal import Terminal
from userlock.constraints import Quota  # noqa: F401  (its kinds stay when those of the page go)
from userlock.stores import MemoryStore
from userlock.testing import ManualClock

pytestmark = pytest.mark.usefixtures("context")

PAGE = Page("docs/names.md")
PROJECTS = PAGE.take("python", "def create_project")
ERROR = PAGE.take("text", "NotUnique")
CHECK = PAGE.take("console", "unique check")
QUOTA = PAGE.take("python", "project_quota = Quota")
NIGHTLY = PAGE.take("python", "def nightly")


@pytest.fixture
def names(context: Any) -> dict[str, Any]:
    """Run the page's code."""
    return PROJECTS.run({"__name__": "projects"})


def test_a_taken_title(names: dict[str, Any]) -> None:
    names["create_project"]("ann", "Summer")
    with pytest.raises(userlock.NotUnique) as caught:
        names["create_project"]("ann", "SUMMER")
    facts = [line.partition(":")[0] for line in str(caught.value).splitlines()]
    shown = ERROR.text.removeprefix("userlock.errors.NotUnique: ")
    assert facts == [line.partition(":")[0] for line in shown.splitlines()]
    assert str(caught.value).splitlines()[0] == shown.splitlines()[0]
    assert str(caught.value).splitlines()[-1] == shown.splitlines()[-1]
    names["create_project"]("bob", "SUMMER")


@pytest.fixture
def terminal(
    store: MemoryStore, clock: ManualClock, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> Terminal:
    monkeypatch.setitem(sys.modules, "main", SimpleNamespace(client=ndb_client))
    return Terminal(store, clock)


def test_the_check(
    names: dict[str, Any], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = names["Project"]
    with monkeypatch.context() as patch, userlock.global_lock("ann"):
        patch.setattr(project, "_userlock_rows", None)
        for number, title in (1, "Summer"), (2, "SUMMER"):
            project(id=number, parent=ndb.Key("User", "ann"), title=title).put()
    command, _, shown = CHECK.text.partition("\n")
    outcome = terminal.run(*command.removeprefix("$ userlock ").split(), "Project")
    assert (outcome.code, outcome.out) == (1, shown)


# --- quotas --------------------------------------------------------------------------------------


@pytest.fixture
def quotas(context: Any) -> Iterator[dict[str, Any]]:
    """Run the page's code of quotas."""
    context.set_cache_policy(False)
    userlock.configure(service=userlock.LockService(MemoryStore()))
    quotas = NIGHTLY.run(QUOTA.run({"__name__": "quotas"}))
    yield quotas
    quotas["outbox"].close()


def run_jobs(quotas: dict[str, Any]) -> None:
    (engine,) = quotas["outbox"].engines
    assert engine.wait_until_idle(30)


def flags(quotas: dict[str, Any]) -> list[bool]:
    return [each.over_quota for each in quotas["active_projects"]("ann")]


def test_projects_over_the_limit(quotas: dict[str, Any]) -> None:
    project = quotas["Project"]
    keys = [ndb.Key("User", "ann", project, number + 1) for number in range(4)]

    @ndb.transactional()
    def create(key: Any) -> None:
        project(key=key).put()
        quotas["project_quota"].stamp("ann")

    with userlock.global_lock("ann"):
        for key in keys:
            create(key)
    run_jobs(quotas)
    assert flags(quotas) == [False, False, False, True]
    quotas["set_active"]("ann", keys[0], False)
    run_jobs(quotas)
    assert flags(quotas) == [False, False, False]
    quotas["set_active"]("ann", keys[0], True)
    run_jobs(quotas)
    assert flags(quotas) == [False, False, False, True]
    assert quotas["nightly"]() == 0
    with userlock.global_lock("ann"):
        quotas["User"](id="ann", plan="plus").put()
    assert quotas["nightly"]() == 1
    run_jobs(quotas)
    assert flags(quotas) == [False] * 4
