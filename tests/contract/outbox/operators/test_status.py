"""Test the status of an outbox, and lists: against a count of all rows, whatever has happened."""

from __future__ import annotations

import random
import re

import pytest

from tests.contract.outbox.operators.conftest import Shop
from tests.unit.cli.terminal import Terminal
from tests.unit.cli.test_docs import OUTBOX, run
from userlock.admin import jobs as reading
from userlock.ndb.owners import SHARDS
from userlock.outbox import listing
from userlock.outbox.rows import RUNNING, due_jobs
from userlock.stores import MemoryStore


def counted_by_hand(shop: Shop) -> dict[str, int]:
    """Count all rows, one by one."""
    now = shop.clock.wall() * 1e6
    found = dict.fromkeys(("due", "later", "running", "dead", "blocked"), 0)
    rows = shop.rows()
    blocking = [row.key.root() for row in rows if row.dead is not None and row.queued is not None]
    for row in rows:
        state = "dead" if row.dead is not None else "running" if row.claim else "later"
        if state == "later" and row.is_ready(now):
            state = "due"
        found[state] += 1
        if state != "dead" and row.key.root() in blocking:
            found["blocked"] += 1
    return found


def status(shop: Shop) -> listing.Status:
    return listing.take_status(shop.outbox, shop.clock.wall())


def test_the_counts_are_those_of_the_rows(shop: Shop) -> None:
    chance = random.Random(1)
    for _ in range(40):
        job = chance.choice([shop.pay, shop.payback, shop.close_books, shop.mail])
        owner = f"user{chance.randrange(8)}"
        shop.stage(job, owner, delay=chance.choice([0, 0, 5, 1000]))
        if chance.random() < 0.5:
            shop.error = chance.choice([None, None, RuntimeError("no"), KeyError("x")])
            shop.deliver()
        shop.clock.advance(chance.choice([0, 3, 20]))
    found, expected = status(shop), counted_by_hand(shop)
    assert {name: getattr(found, name) for name in expected} == expected
    assert all(expected.values()) or not expected["running"], "the seeds reach all states"
    assert not found.notes
    waiting = [row.ready_at for row in shop.rows() if row.dead is None and not row.claim]
    due = [each for each in waiting if each <= shop.clock.wall() * 1e6]
    assert found.due_since == (min(due) / 1e6 if due else None)


def test_a_job_that_a_worker_has_claimed_is_running(shop: Shop) -> None:
    seen: list[listing.Status] = []

    @shop.outbox.job(name="look")
    def look(user_id: str) -> None:
        seen.append(status(shop))

    shop.stage(look, "ann")
    shop.deliver()
    assert [(each.running, each.due) for each in seen] == [(1, 0)]
    assert status(shop).running == 0


def test_a_job_that_stops_running_between_the_queries_is_listed_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[listing.Listing] = []

    @shop.outbox.job(name="look")
    def look(user_id: str) -> None:
        found.append(listing.search(shop.outbox, listing.Search()))

    query = listing._standing
    monkeypatch.setattr(
        listing, "_standing", lambda box, space, _, shard: query(box, space, RUNNING, shard)
    )
    shop.stage(look, "ann")
    shop.deliver()
    assert [len(each.letters) for each in found] == [1]


def test_the_lag_grows_although_the_relay_pushes_jobs_back(shop: Shop) -> None:
    """The engine takes messages and delivers none: the queue is paused, or workers are gone."""
    shop.stage(shop.pay, "ann")
    for _ in range(10):
        shop.clock.advance(100)
        shop.outbox.relay()
    found = status(shop)
    assert (found.due, found.later) == (1, 0)
    assert found.lag == pytest.approx(1000)
    with shop.outbox.context():
        now = round(shop.clock.wall() * 1e6)
        due = [row for shard in range(SHARDS) for row in due_jobs("", shard, now)]
    assert due == [], "the control: by the index that the relay reads, nothing is late"


def test_many_causes_are_bounded_and_said(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_MOST_CAUSES", 5)
    for number in range(6):
        shop.put_dead(["ann"], cause=f"pay Error{number}")
    found = status(shop)
    assert len(found.causes) == 5
    assert found.notes == ["there are more than 5 causes"]


# --- lists --------------------------------------------------------------------------------------


def names(shop: Shop, most: int = 100, **wanted: object) -> list[tuple[str, str]]:
    search = listing.Search(**wanted)  # type: ignore[arg-type]
    found = listing.search(shop.outbox, search, most=most)
    return [(each.job, each.owner) for each in found.letters]


def test_lists(shop: Shop) -> None:
    shop.kill(shop.pay, "ann")
    shop.kill(shop.payback, "ann")
    shop.kill(shop.close_books, "eve", error=KeyError("x"))
    shop.stage(shop.mail, "zoe", delay=50)
    shop.clock.advance(1)
    shop.stage(shop.pay, "eve")
    dead = [("close_books", "eve"), ("pay", "ann"), ("payback", "ann")]
    assert names(shop) == [("pay", "eve"), ("mail", "zoe")]
    assert names(shop, dead=True) == dead
    assert names(shop, cause="pay") == [("pay", "ann")], "not payback"
    assert names(shop, cause="pay RuntimeError") == [("pay", "ann")]
    assert names(shop, cause="pa") == []
    assert names(shop, job="pay") == [("pay", "eve")]
    assert names(shop, job="pay", dead=True) == [("pay", "ann")]
    assert names(shop, owner="ann") == [("pay", "ann"), ("payback", "ann")]
    assert names(shop, owner="eve", dead=True) == [("close_books", "eve")]
    assert names(shop, owner="eve", cause="pay") == []


def test_a_list_is_bounded_and_says_so(shop: Shop) -> None:
    for number in range(12):
        shop.stage(shop.pay, f"user{number}")
    found = listing.search(shop.outbox, listing.Search(), most=10)
    assert (len(found.letters), found.note) == (10, "there are more than 10 jobs")
    exact = listing.search(shop.outbox, listing.Search(), most=12)
    assert (len(exact.letters), exact.note) == (12, "")


def test_long_arguments_are_not_kept_in_lists(shop: Shop) -> None:
    shop.stage(shop.pay, "ann", "x" * 800_000)
    (letter,) = listing.search(shop.outbox, listing.Search()).letters
    assert len(letter.arguments) < 10_000
    with shop.outbox.context():
        whole = reading.read(reading.key_of(letter.key))
    assert whole is not None
    assert len(reading.call_of(whole)) <= 2_001


# --- one job ------------------------------------------------------------------------------------


def why(shop: Shop, key: str) -> str:
    with shop.outbox.context():
        letter = reading.read(reading.key_of(key))
        assert letter is not None
        return reading.explain(letter, shop.clock.wall()).text


def test_the_reason_why_a_job_does_not_run(shop: Shop) -> None:
    dead = shop.kill(shop.close_books, "eve")
    behind = shop.stage(shop.pay, "eve")
    later = shop.stage(shop.pay, "ann", delay=90)
    shop.error = RuntimeError("no")
    failed = shop.stage(shop.mail, "bob")
    shop.deliver()
    behind_failed = shop.stage(shop.pay, "bob")
    waits = shop.stage(shop.pay, "zoe")
    shop.clock.advance(2)
    assert "It is dead" in why(shop, dead)
    assert "holds it up, which is dead" in why(shop, behind)
    assert "may run in 1m28s" in why(shop, later)
    assert "may run in 8.0s, after 1 failure" in why(shop, failed)
    assert "holds it up, which is to run again later" in why(shop, behind_failed)
    assert "waits for a worker" in why(shop, waits)
    shop.clock.advance(10)
    assert "holds it up, which is due" in why(shop, behind_failed)


# --- on the command line ------------------------------------------------------------------------


class SMTPServerDisconnected(Exception):
    """As in smtplib."""


def test_the_status_in_the_documentation(shop: Shop, terminal: Terminal) -> None:
    def fail(user_id: str, cents: int = 0) -> None:
        raise shop.error or SMTPServerDisconnected

    once = shop.pay.retry
    send = shop.outbox.job(name="receipts.send", retry=once)(fail)
    close = shop.outbox.job(name="books.close", on_dead="block", retry=once)(fail)
    shop.kill(close, "ann", error=KeyError("x"))
    for owner in ("bob", "eve"):
        shop.kill(send, owner, error=SMTPServerDisconnected())
    shop.stage(send, "ann", cents=2000)
    shop.clock.advance(300)
    shop.stage(send, "zoe")
    shop.stage(send, "zoe", delay=900)
    shop.clock.advance(100)
    outcome, shown = run(terminal, OUTBOX)
    assert outcome.code == 1
    assert re.sub(r"\bag[\w-]+", "KEY", outcome.out) == re.sub(r"\bag[\w-]+", "KEY", shown)
    fine = terminal.run("outbox", "status", "--late", "401", "--json")
    assert (fine.code, fine.document["lag_seconds"]) == (0, pytest.approx(400))
    assert fine.document["causes"][0] == {"cause": "books.close KeyError", "dead": 1, "blocking": 1}


def test_an_empty_outbox(shop: Shop, terminal: Terminal) -> None:
    none = "0 due, 0 later, 0 running, 0 blocked, 0 dead\n"
    assert terminal.run("outbox", "status", "--late", "1").out == none
    assert terminal.run("outbox", "list", "--owner", "nobody").out == "no jobs\n"


def test_list_and_show(shop: Shop, terminal: Terminal) -> None:
    key = shop.kill(shop.pay, "ann", error=KeyError("x"))
    listed = terminal.run("outbox", "list", "--cause", "pay KeyError", "--json").document
    assert [each["key"] for each in listed["jobs"]] == [key]
    shown = terminal.run("outbox", "show", key)
    assert shown.code == 0
    assert "pay('ann')" in shown.out
    assert "KeyError: 'x'" in shown.out
    document = terminal.run("outbox", "show", key, "--json").document
    assert (document["state"], document["attempts"], document["owner"]) == ("dead", 1, "ann")
    assert document["first_error"]["text"].startswith("KeyError: 'x'")


def test_a_job_that_is_gone(shop: Shop, terminal: Terminal) -> None:
    key = shop.stage(shop.pay, "ann")
    shop.deliver()
    for action in ("show", "run"):
        outcome = terminal.run("outbox", action, key)
        assert outcome.code == 1
        assert "it is done, was purged, or never was" in outcome.out + outcome.err


def test_run_reports_each_job(shop: Shop, terminal: Terminal) -> None:
    shop.stage(shop.pay, "ann", 1)
    key = shop.stage(shop.mail, "ann", 2)
    done = terminal.run("outbox", "run", key)
    assert done.code == 0
    assert [line.split(" after")[0] for line in done.out.splitlines()] == [
        "pay: done",
        "mail: done",
    ]
    assert shop.ran == [("ann", 1), ("ann", 2)]


def test_run_of_a_job_that_fails(shop: Shop, terminal: Terminal) -> None:
    key = shop.stage(shop.mail, "ann")
    shop.error = RuntimeError("no \x1b[2J")
    failed = terminal.run("outbox", "run", key, "--json")
    assert failed.code == 1
    (job,) = failed.document["jobs"]
    assert (failed.document["outcome"], failed.document["done"]) == ("ran", False)
    assert (job["outcome"], job["attempt"]) == ("failed", 1)
    assert "may run in 10s, after 1 failure" in failed.document["why"]
    early = terminal.run("outbox", "run", key)
    assert (early.code, early.out) == (
        1,
        "nothing: It is not due: it may run in 10s, after 1 failure.\n",
    )


def test_run_while_the_owner_is_busy(shop: Shop, terminal: Terminal, store: MemoryStore) -> None:
    key = shop.stage(shop.pay, "ann")
    terminal.hold("ann")
    busy = terminal.run("outbox", "run", key)
    assert (busy.code, "its owner is busy" in busy.out) == (1, True)
    assert shop.row(key).attempts == 0


def test_relay_once(shop: Shop, terminal: Terminal) -> None:
    shop.stage(shop.pay, "ann")
    shop.engine.messages.clear()
    outcome = terminal.run("outbox", "relay", "--once", "--json")
    assert (outcome.code, outcome.document) == (0, {"woken": 1, "refused": 0, "shards": 1})
    assert len(shop.engine.messages) == 1
