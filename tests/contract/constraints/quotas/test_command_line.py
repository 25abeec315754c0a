"""`userlock quota check` and `recount`, on the emulator."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.contract.constraints.quotas.conftest import Book, Reader, Shelves
from tests.unit.cli.terminal import Terminal, in_thread
from userlock.ndb.owners import in_namespace
from userlock.stores import MemoryStore
from userlock.testing import ManualClock
from userlock_emulator import Emulator


@pytest.fixture
def terminal(shelves: Shelves, store: MemoryStore, clock: ManualClock) -> Terminal:
    """Provide a command line that names the app's quota."""
    terminal = Terminal(store, clock)
    terminal.environ["USERLOCK_QUOTA"] = "shelves_app:quota"
    return terminal


def spoil(owner: str) -> None:
    """Write a wrong flag, as another program might."""
    with userlock.global_lock(owner):
        book = ndb.Key(Reader, owner, Book, 1).get()
        book.over_quota = True
        book.put()


def fill(shelves: Shelves) -> None:
    for owner in ("ann", "bob"):
        for number in range(3):
            shelves.change(owner, number, "create")
    shelves.run_jobs()


def test_wrong_flags_are_reported_and_counted_again(shelves: Shelves, terminal: Terminal) -> None:
    fill(shelves)
    outcome = terminal.run("quota", "check")
    assert (outcome.code, outcome.out) == (0, "2 owners checked, 0 wrong\n")
    spoil("bob")
    # As the command runs: keys can be shown in an ndb context only.
    outcome = in_thread(lambda: terminal.run("quota", "check"))
    assert outcome.code == 1
    assert outcome.out == (
        "bob: 3 counted, limit 2, 1 flags are wrong\n2 owners checked, 1 wrong\n"
    )
    outcome = terminal.run("quota", "recount")
    assert (outcome.code, outcome.out) == (0, "2 owners checked, 1 job staged\n")
    shelves.run_jobs()
    assert terminal.run("quota", "check", "bob").code == 0
    assert shelves.flags("bob") == shelves.right_flags("bob")


def test_a_job_that_has_not_run(shelves: Shelves, terminal: Terminal) -> None:
    shelves.change("ann", 0, "plan none")
    shelves.clock.advance(600)
    outcome = terminal.run("quota", "check")
    assert outcome.code == 1
    assert "ann: 0 counted, no limit, 0 flags are wrong; its job has not run for 10m" in outcome.out


def test_one_owner(shelves: Shelves, terminal: Terminal) -> None:
    fill(shelves)
    spoil("bob")
    assert terminal.run("quota", "check", "ann").code == 0
    outcome = terminal.run("quota", "recount", "ann", "never-seen")
    assert outcome.out == "2 owners checked, 2 jobs staged\n"


def test_the_document(shelves: Shelves, terminal: Terminal) -> None:
    fill(shelves)
    spoil("ann")
    key = ndb.Key(Reader, "ann", Book, 1)
    document = terminal.run("quota", "check", "--json").document
    assert document == {
        "checked": 2,
        "wrong": [
            {
                "namespace": "",
                "owner": "ann",
                "limit": 2,
                "counted": 3,
                "differing": [repr(key)],
                "dirty_seconds": None,
            }
        ],
        "failed": [],
        "interrupted": False,
    }
    document = terminal.run("quota", "recount", "--json").document
    assert document == {"checked": 2, "stamped": 1, "failed": [], "interrupted": False}


def test_an_owner_that_cannot_be_counted(
    shelves: Shelves, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shelves)

    def limit(owner: str) -> Any:
        if owner == "ann":
            raise LookupError("a \x1b[2J plan")
        return 2

    monkeypatch.setattr(shelves.quota, "_limit", limit)
    outcome = terminal.run("quota", "check")
    assert outcome.code == 1
    assert "ann: cannot be counted: a \\x1b[2J plan" in outcome.out
    assert "\x1b" not in outcome.out


def test_contention_at_one_owner_stops_no_others(
    shelves: Shelves, terminal: Terminal, datastore: Emulator
) -> None:
    with datastore.faults.abort(4, kind="UserLockQuota"):  # the first one, and its retries
        outcome = terminal.run("quota", "recount", "ann", "bob")
    assert outcome.code == 1
    assert "ann: cannot be counted: contention with other requests" in outcome.out
    assert "2 owners checked, 1 job staged" in outcome.out


def test_hidden_owners(shelves: Shelves, terminal: Terminal) -> None:
    fill(shelves)
    spoil("ann")
    terminal.environ["USERLOCK_SHOW_IDS"] = "hashed"
    outcome = terminal.run("quota", "check")
    assert "ann" not in outcome.out


def test_a_wrong_name(terminal: Terminal) -> None:
    for app in ["", "shelves_app", "shelves_app:nothing", "nowhere:quota"]:
        terminal.environ["USERLOCK_QUOTA"] = app
        outcome = terminal.run("quota", "check")
        assert outcome.code == 2
        assert "quota" in outcome.err


def test_a_tenant_is_named(shelves: Shelves, terminal: Terminal) -> None:
    with in_namespace("blue"):
        fill(shelves)
        spoil("bob")
    outcome = in_thread(lambda: terminal.run("quota", "check"))
    assert outcome.out.startswith("bob in blue: 3 counted")
    found = in_thread(lambda: terminal.run("quota", "check", "--json")).document["wrong"]
    assert [(each["namespace"], each["owner"]) for each in found] == [("blue", "bob")]
