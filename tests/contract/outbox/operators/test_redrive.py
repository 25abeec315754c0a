"""Test redrives and purges: what they change, and what they leave alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.outbox.operators.conftest import Shop
from tests.unit.cli.terminal import Outcome, Terminal
from userlock.outbox import dead_letters

OWNERS = [f"user{number:02}" for number in range(20)]


def dead(shop: Shop) -> list[str]:
    return sorted(row.owner for row in shop.rows() if row.dead is not None)


def redriven(shop: Shop) -> list[str]:
    return sorted(row.owner for row in shop.rows() for _ in range(row.redriven))


# --- redrive ------------------------------------------------------------------------------------


def test_one(shop: Shop, terminal: Terminal) -> None:
    key = shop.kill(shop.pay, "ann")
    shop.kill(shop.pay, "bob")
    outcome = terminal.run("outbox", "redrive", key)
    assert (outcome.code, outcome.out) == (0, "1 job redriven, 0 left\n")
    assert (dead(shop), redriven(shop)) == (["bob"], ["ann"])
    again = terminal.run("outbox", "redrive", key)
    assert (again.code, again.out) == (1, "0 jobs redriven, 1 left: it is not dead\n")
    shop.deliver()
    gone = terminal.run("outbox", "redrive", key)
    assert (gone.code, "there is no such job" in gone.err) == (1, True)


@pytest.mark.parametrize("meant", ["key", "--all", "--cause=KeyError"])
@pytest.mark.parametrize("action", ["redrive", "purge"])
def test_an_owner_is_not_ignored(shop: Shop, terminal: Terminal, action: str, meant: str) -> None:
    key = shop.kill(shop.pay, "ann")
    shop.kill(shop.pay, "bob")
    yes = ["--yes", "2"] if action == "purge" else []
    name = key if meant == "key" else meant
    outcome = terminal.run("outbox", action, name, "--owner", "bob", *yes)
    assert outcome.code == 2
    assert "owner" in outcome.err
    assert dead(shop) == ["ann", "bob"]


def test_a_busy_owner_holds_nobody_else_up(shop: Shop, terminal: Terminal) -> None:
    shop.put_dead(OWNERS)
    lease = terminal.hold(OWNERS[0])
    outcome = terminal.run("outbox", "redrive", "--all", "--rate", "10000", "--json")
    assert outcome.code == 1
    assert outcome.document == {"redriven": 19, "skipped": 1, "left": 1, "interrupted": False}
    assert dead(shop) == OWNERS[:1]
    terminal.service.release(lease)
    again = terminal.run("outbox", "redrive", "--all", "--json")
    assert (again.code, again.document["redriven"]) == (0, 1)
    assert redriven(shop) == OWNERS, "none twice"


@pytest.mark.parametrize("looks", [True, False], ids=["", "the control"])
def test_one_that_dies_again_meanwhile_is_left(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, looks: bool
) -> None:
    """Each dies again at once, of a cause that comes later in the list. The control: without a
    look at the time of its death."""
    if not looks:
        monkeypatch.setattr(
            dead_letters.DeadLetters,
            "_is_meant",
            lambda _, row, *others: getattr(row, "dead", None) is not None,
        )
    monkeypatch.setattr(dead_letters, "_BATCH", 5)
    shop.put_dead(OWNERS)
    shop.error = ZeroDivisionError("again")
    with shop.outbox.context():
        for _ in shop.outbox.dead.redrive_all("", rate=100):
            shop.clock.advance(0.001)
            shop.deliver()
    assert (redriven(shop) == OWNERS) is looks, "none twice"
    assert dead(shop) == OWNERS
    assert {row.cause for row in shop.rows()} == {"pay ZeroDivisionError"}


@pytest.mark.parametrize(("rate", "at", "done"), [(10, 0, 0), (50, 7, 10)])
def test_a_redrive_that_is_ended_is_resumed(shop: Shop, rate: float, at: int, done: int) -> None:
    """It ends within a batch, or behind one."""
    shop.put_dead(OWNERS)
    with shop.outbox.context():
        each = shop.outbox.dead.redrive_all("", rate=rate)
        for _ in range(at):
            next(each)
        del each
        assert len(redriven(shop)) == done
        for _ in shop.outbox.dead.redrive_all("", rate=1000):
            pass
    assert (redriven(shop), dead(shop)) == (OWNERS, [])


def test_a_stop_ends_the_pause(shop: Shop) -> None:
    shop.put_dead(OWNERS)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True

    began = shop.clock.now()
    shop.clock.after(30, stop)
    with shop.outbox.context():
        done = list(shop.outbox.dead.redrive_all("", rate=0.01, stopped=lambda: stopped))
    assert len(done) == 1
    assert shop.clock.now() - began < 30.5


# --- purge --------------------------------------------------------------------------------------


def test_a_purge_asks_twice(shop: Shop, terminal: Terminal) -> None:
    shop.kill(shop.pay, "ann")
    shop.kill(shop.pay, "bob", error=KeyError("x"))
    shop.kill(shop.payback, "eve")
    for typed, why in (
        ("", "you said no"),
        ("n\n", "you said no"),
        ("2\n", "you said no"),
        ("y\n", "found 2 dead jobs, and you typed another number"),
        ("y\ny\n", "found 2 dead jobs, and you typed another number"),
        ("y\n3\n", "found 2 dead jobs, and you typed another number"),
    ):
        refused = terminal.run("outbox", "purge", "--cause", "pay", typed=typed)
        assert (refused.code, refused.out) == (1, f"nothing purged: {why}\n")
    assert dead(shop) == ["ann", "bob", "eve"]
    done = terminal.run("outbox", "purge", "--cause", "pay", typed="y\n2\n")
    assert (done.code, done.out) == (0, "2 jobs purged, 0 left\n")
    assert "pay KeyError" in done.err
    assert "payback" not in done.err
    assert dead(shop) == ["eve"]


def test_without_a_terminal_it_needs_the_number(shop: Shop, terminal: Terminal) -> None:
    shop.put_dead(["ann", "bob"])
    assert terminal.run("outbox", "purge", "--all").code == 2
    for number, code, left in (("1", 1, 2), ("3", 1, 2), ("0", 1, 2), ("2", 0, 0)):
        outcome = terminal.run("outbox", "purge", "--all", "--yes", number, "--json")
        assert (outcome.code, len(dead(shop)), outcome.document["left"]) == (code, left, left)


def test_nothing_to_purge(shop: Shop, terminal: Terminal) -> None:
    key = shop.stage(shop.pay, "ann")
    assert terminal.run("outbox", "purge", "--all", "--yes", "0").code == 0
    assert terminal.run("outbox", "purge", "--cause", "mistyped", "--yes", "2").code == 1
    assert terminal.run("outbox", "purge", key, "--yes", "1").code == 1
    assert len(shop.rows()) == 1, "a job that waits is never purged"


def asked(shop: Shop, terminal: Terminal, meanwhile: Callable[[], object]) -> Outcome:
    """Purge what is dead now; something happens while the command asks."""
    steps = iter([meanwhile])
    return terminal.run(
        *("outbox", "purge", "--all"),
        typed=f"y\n{len(dead(shop))}\n",
        while_asked=lambda: next(steps, lambda: None)(),
    )


def die(shop: Shop) -> None:
    shop.clock.advance(1)
    shop.put_dead(["new1", "new2"])


def are_redriven(shop: Shop) -> None:
    with shop.outbox.context():
        for _ in shop.outbox.dead.redrive_all("pay", rate=1000):
            pass


@pytest.mark.parametrize(
    ("meanwhile", "left", "again"),
    [(die, ["new1", "new2"], []), (are_redriven, [], ["ann", "bob"])],
)
def test_jobs_that_change_while_it_asks_are_spared(
    shop: Shop,
    terminal: Terminal,
    meanwhile: Callable[[Shop], None],
    left: list[str],
    again: list[str],
) -> None:
    shop.put_dead(["ann", "bob"])
    asked(shop, terminal, lambda: meanwhile(shop))
    assert (dead(shop), redriven(shop)) == (left, again)


# --- both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["redrive", "purge"])
def test_exactly_one_choice(shop: Shop, terminal: Terminal, action: str) -> None:
    shop.put_dead(["ann"])
    for none in ([], ["--cause", ""], [""]):
        outcome = terminal.run("outbox", action, *none)
        assert (outcome.code, dead(shop)) == (2, ["ann"])
        assert "by KEY, by --cause TEXT, or by --all" in outcome.err
    for several in (["--all", "--cause", "pay"], ["KEY", "--all"], ["KEY", "--cause", "x"]):
        assert (terminal.run("outbox", action, *several).code, dead(shop)) == (2, ["ann"])


def test_an_outage_of_the_locks_does_no_harm(shop: Shop, terminal: Terminal) -> None:
    """Without a fallback the lock is degraded, and the row's own transaction decides."""
    shop.put_dead(["ann"])
    terminal.memory().go_down("connection refused")
    outcome = terminal.run("outbox", "redrive", "--all")
    assert outcome.code == 0
    assert redriven(shop) == ["ann"]
