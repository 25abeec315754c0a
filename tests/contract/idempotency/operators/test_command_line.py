"""`userlock flows` and `userlock reap`, on the emulator."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.contract.idempotency.conftest import KEY, rows
from tests.contract.idempotency.operators.conftest import Shop
from tests.unit.cli.terminal import Terminal
from tests.unit.cli.test_docs import FLOWS, run
from userlock.idempotency import Flows
from userlock.lock.configuration import defaults
from userlock.stores import MemoryStore
from userlock.testing import ManualClock
from userlock_emulator import Emulator


@pytest.fixture
def terminal(
    shop: Shop, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Terminal:
    """Provide a command line that names the app's flows."""
    monkeypatch.setitem(sys.modules, "rides_app", SimpleNamespace(flows=shop.flows))
    terminal = Terminal(store, clock)
    terminal.environ["USERLOCK_FLOWS"] = "rides_app:flows"
    return terminal


def test_the_list_in_the_documentation(shop: Shop, terminal: Terminal) -> None:
    shop.fail("ann", "payment-1234-of-november")
    shop.fail("ann", "payment-1234-of-november")
    terminal.clock.advance(20 * 60 - 1)
    shop.fail("bob")
    terminal.clock.advance(1)
    outcome, shown = run(terminal, FLOWS)
    assert (outcome.code, outcome.out) == (0, shown)


def test_lists(shop: Shop, terminal: Terminal) -> None:
    assert terminal.run("flows", "list").out == "no requests\n"
    with shop.flows.context():
        shop.sell("ann", KEY)
        shop.sell("bob", KEY)
    shop.fail("ann", "another")
    found = terminal.run("flows", "list", "--json").document["requests"]
    assert [(each["user"], each["key"], each["state"]) for each in found] == [
        ("ann", "another", "running")
    ]
    done = terminal.run("flows", "list", "--done", "--json").document["requests"]
    assert {(each["user"], each["status"]) for each in done} == {("ann", 200), ("bob", 200)}
    done = terminal.run("flows", "list", "--done", "--user", "bob", "--json").document["requests"]
    assert [each["user"] for each in done] == ["bob"]
    terminal.clock.advance(1)
    with shop.flows.context():
        shop.sell("bob", "of-a-later-second")
    for more in ([], ["--user", "bob"]):  # the newest
        done = terminal.run("flows", "list", "--done", "--most", "1", "--json", *more).document
        assert [each["key"] for each in done["requests"]] == ["of-a-later-second"]


def test_one_request(shop: Shop, terminal: Terminal) -> None:
    shop.fail("ann")
    terminal.clock.advance(400)
    outcome = terminal.run("flows", "show", KEY, "--user", "ann")
    assert outcome.code == 0
    for shown in ("rides", "stuck", "order", "the server or its client", "6m40s ago"):
        assert shown in outcome.out
    found = terminal.run("flows", "show", KEY, "--user", "ann", "--json").document
    assert (found["points"], found["attempts"], found["completable"]) == (["order"], 1, True)
    nobody = terminal.run("flows", "show", KEY, "--user", "zoe")
    assert (nobody.code, nobody.out) == (1, "")
    assert "no such request" in nobody.err


def test_a_running_request_is_recognised_by_a_lock_of_the_flows_own_service(
    shop: Shop, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an app that configures no service, without --store."""
    del terminal.environ["USERLOCK_STORE"]
    monkeypatch.setattr(defaults, "service", None)
    shop.fail("ann")
    terminal.clock.advance(90)
    for state, locks in (("stuck", ()), ("running", ("ann",))):
        for lock_id in locks:
            shop.service.acquire(lock_id)
        (found,) = terminal.run("flows", "list", "--json").document["requests"]
        assert found["state"] == state


@pytest.mark.parametrize(
    ("arguments", "code", "completed"),
    [
        ([KEY, "--user", "ann"], 2, []),
        ([KEY, "--user", "ann", "--namespace", "b"], 0, ["b"]),
        ([KEY, "--user", "ann", "--namespace", "other"], 1, []),
        (["--namespace", "b"], 0, ["b"]),
        (["--namespace", ""], 0, [""]),
        ([], 0, ["", "a", "b"]),
        ([KEY, "--user", "ann", "--older-than", "1"], 2, []),
    ],
)
def test_of_tenants_with_one_key_those_that_are_meant(
    shop: Shop, terminal: Terminal, arguments: list[str], code: int, completed: list[str]
) -> None:
    for tenant in ("", "a", "b"):
        shop.fail("ann", tenant=tenant)
    terminal.clock.advance(400)
    listed = terminal.run("flows", "list").out
    assert [line.split()[3] for line in listed.splitlines()] == ["NAMESPACE", "ann", "a", "b"]
    outcome = terminal.run("flows", "complete", *arguments)
    assert outcome.code == code
    for tenant in completed:
        assert f"rides of ann{f' in {tenant}' if tenant else ''}: answered" in outcome.out
    done = terminal.run("flows", "list", "--done", "--json").document["requests"]
    assert sorted(each["namespace"] for each in done) == completed


def test_a_request_of_one_tenant_is_found(shop: Shop, terminal: Terminal) -> None:
    shop.fail("ann", tenant="b")
    shown = terminal.run("flows", "show", KEY, "--user", "ann", "--json").document
    assert shown["namespace"] == "b"


def test_hidden_ids(shop: Shop, terminal: Terminal) -> None:
    shop.fail("ann@example.com", "payment-of-ann@example.com")
    terminal.environ["USERLOCK_SHOW_IDS"] = "masked"
    for arguments in (
        ["list"],
        ["list", "--json"],
        ["show", "payment-of-ann@example.com", "--user", "ann@example.com"],
        ["complete", "--older-than", "0.1"],
    ):
        terminal.clock.advance(1)
        outcome = terminal.run("flows", *arguments)
        assert outcome.code == 0
        assert "ann" not in outcome.out + outcome.err, arguments
        assert "***" in outcome.out


def test_unfinished_requests_are_completed(shop: Shop, terminal: Terminal) -> None:
    shop.fail("ann")
    shop.fail("bob")
    young = terminal.run("flows", "complete")
    assert (young.code, young.out) == (0, "0 requests completed\n")
    terminal.clock.advance(301)
    shop.fail("zoe")
    outcome = terminal.run("flows", "complete", "--json").document
    assert (outcome["completed"], outcome["failed"], outcome["interrupted"]) == (2, 0, False)
    one = terminal.run("flows", "complete", KEY, "--user", "zoe")
    assert (one.code, one.out) == (0, "rides of zoe: answered with 200\n1 request completed\n")
    again = terminal.run("flows", "complete", KEY, "--user", "zoe")
    assert again.code == 1
    assert "no such request that the server can complete" in again.err
    with shop.flows.context():
        assert all(row.is_finished for row in rows())
        assert shop.sell("ann", KEY)["attempt"] == 2


def test_one_that_fails_again(shop: Shop, terminal: Terminal) -> None:
    shop.fail("ann")
    shop.error = RuntimeError("a \x1b[2J bug")
    terminal.clock.advance(301)
    outcome = terminal.run("flows", "complete")
    assert outcome.code == 1
    assert "not complete: RuntimeError at " in outcome.out
    assert "bug" not in outcome.out, "the text of the app's error may have secrets"
    assert "1 failed again" in outcome.out
    assert "\x1b" not in outcome.out + outcome.err


def test_half_a_name(terminal: Terminal) -> None:
    for arguments in ([KEY], ["--user", "ann"]):
        outcome = terminal.run("flows", "complete", *arguments)
        assert outcome.code == 2
        assert "KEY and --user together" in outcome.err


def test_contention_at_one_answer_stops_no_others(
    shop: Shop, terminal: Terminal, datastore: Emulator
) -> None:
    with shop.flows.context():
        shop.sell("ann", KEY)
        shop.sell("bob", KEY)
    terminal.clock.advance(24 * 3600 + 1)
    with datastore.faults.abort(4, kind="UserLockRequest"):  # the first one, and its retries
        outcome = terminal.run("reap")
    assert (outcome.code, outcome.out) == (0, "1 answer removed\n")


def test_answers_are_removed_when_they_are_no_longer_kept(shop: Shop, terminal: Terminal) -> None:
    with shop.flows.context():
        shop.sell("ann", KEY)
    shop.fail("bob")
    assert terminal.run("reap").out == "0 answers removed\n"
    terminal.clock.advance(24 * 3600 + 1)
    assert terminal.run("reap", "--json").document == {"removed": 1, "interrupted": False}
    with shop.flows.context():
        (row,) = rows()
    assert not row.is_finished


def test_flows_without_a_client(terminal: Terminal) -> None:
    sys.modules["rides_app"].flows = Flows()  # type: ignore[attr-defined]
    outcome = terminal.run("flows", "list")
    assert (outcome.code, outcome.out) == (2, "")
    assert "client=ndb.Client" in outcome.err


def test_no_flows_are_named(terminal: Terminal) -> None:
    del terminal.environ["USERLOCK_FLOWS"]
    advice = terminal.run("flows", "list").err
    assert "set USERLOCK_APP=main:app, or USERLOCK_FLOWS=main:flows" in advice
    sys.modules["rides_app"].flows = 7  # type: ignore[attr-defined]
    outcome = terminal.run("flows", "list", "--app", "rides_app:flows")
    assert "is no userlock.idempotency.Flows, but of the type int" in outcome.err
