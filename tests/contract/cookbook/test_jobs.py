"""docs/outbox.md and docs/cookbook.md: a staged job, lanes, dead letters; tables of crashes."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock_emulator
from tests.contract.cookbook.conftest import ByHand, Cook, ending
from tests.documents import Page
from userlock.outbox.rows import JobRow

OUTBOX = Page("docs/outbox.md")
PAGE = Page("docs/cookbook.md")
STAGED_CODE = OUTBOX.take("python", "send_receipt.stage")
TIERS_CODE = PAGE.take("python", "def call_customer")
LETTERS_CODE = PAGE.take("python", "def redrive")
FAST, SLOW = "inline://?threads=4", "inline://?threads=1"


def jobs() -> list[Any]:
    return list(JobRow.query(namespace="").fetch(use_cache=False))


def relay(names: dict[str, Any], by_hand: ByHand, seconds: float = 120) -> None:
    """Let the relay find what is due after that time, and run it."""
    by_hand.clock.advance(seconds)
    names["outbox"].relay()
    by_hand.deliver_all()


# --- a job in the transaction -------------------------------------------------------------


@pytest.mark.parametrize(
    "crash",
    ["none", "before the commit", "lost reply", "not told", "before the job", "after the job"],
)
def test_a_staged_job(
    cook: Cook,
    by_hand: ByHand,
    datastore: userlock_emulator.Emulator,
    capsys: pytest.CaptureFixture[str],
    crash: str,
) -> None:
    names = cook(STAGED_CODE)
    job = names["send_receipt"]
    if crash == "lost reply":
        datastore.faults.drop_reply()
    if crash == "before the commit":
        with ending(job, "stage", after=True, error=LookupError):
            names["buy"]("ann", 2000)
    else:
        by_hand.lanes["inline://"].down = crash == "not told"
        names["buy"]("ann", 2000)
        by_hand.lanes["inline://"].down = False
    if crash.endswith("the job"):
        with ending(job, "function", after=crash == "after the job"):
            by_hand.deliver_all()
    by_hand.deliver_all()
    relay(names, by_hand)
    account = names["Account"].get_by_id("ann", use_cache=False)
    receipts = {"before the commit": 0, "after the job": 2}.get(crash, 1)
    assert (account and account.cents) == (2000 if receipts else None)
    assert capsys.readouterr().out == "to ann: you have paid 2000 cents\n" * receipts
    assert jobs() == []


# --- retries with a slow lane -------------------------------------------------------------


def call(names: dict[str, Any], user_id: str) -> None:
    ndb.transaction(lambda: names["call_customer"].stage(user_id, "paid", "call-1"))


def test_a_server_that_is_down_is_asked_from_the_slow_lane(cook: Cook, by_hand: ByHand) -> None:
    names = cook(TIERS_CODE)
    names["DOWN"].add("ann")
    call(names, "ann")
    by_hand.lanes[FAST].deliver_all()
    by_hand.clock.advance(10)
    names["outbox"].run(jobs()[0].key.urlsafe().decode())
    call(names, "bob")
    by_hand.lanes[FAST].deliver_all()
    assert names["CALLS"] == [("bob", "call-1")], "others pass"
    names["DOWN"].clear()
    by_hand.clock.advance(60)
    by_hand.lanes[SLOW].deliver_all()
    assert names["CALLS"] == [("bob", "call-1"), ("ann", "call-1")]
    assert jobs() == []


@pytest.mark.parametrize(("error", "attempts"), [("ConnectionError", 8), ("Gone", 1)])
def test_attempts(
    cook: Cook, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, error: str, attempts: int
) -> None:
    names = cook(TIERS_CODE)

    def fail(*args: Any) -> None:
        raise names.get(error, ConnectionError)

    monkeypatch.setattr(names["call_customer"], "function", fail)
    call(names, "ann")
    pauses = []
    while jobs()[0].dead is None:
        began = by_hand.clock.wall()
        names["outbox"].run(jobs()[0].key.urlsafe().decode())
        pauses.append(jobs()[0].ready_at / 1e6 - began)
        by_hand.clock.advance(3600)
    assert len(pauses) == attempts
    for number, pause in enumerate(pauses[:-1]):
        assert 5 * 2**number <= pause <= 10 * 2**number + 1
    assert jobs()[0].cause == f"cookbook.call_customer {error}"


# --- dead letters -------------------------------------------------------------------------

DEAD = 8


@pytest.fixture
def letters(cook: Cook, by_hand: ByHand) -> dict[str, Any]:
    """Provide the names of the page, and some dead letters."""
    names = cook(LETTERS_CODE)
    for number in range(DEAD):
        ndb.transaction(lambda: names["export"].stage(f"user{number}", "points"))  # noqa: B023
    by_hand.deliver_all()
    relay(names, by_hand)
    assert len(names["look"]()) == DEAD
    return names


@pytest.mark.parametrize("crash", ["none", "in a batch", "the engine not told", "still broken"])
def test_a_redrive(letters: dict[str, Any], by_hand: ByHand, crash: str) -> None:
    (line,) = {each.partition(": ")[2] for each in letters["look"]()}
    assert line.startswith("ZeroDivisionError: no rows in the last quarter (")
    assert PAGE.path in line
    letters["BROKEN"] = crash == "still broken"
    dead = letters["outbox"].dead
    if crash == "in a batch":
        redriving = dead.redrive_all("export ZeroDivisionError")
        next(redriving)
        redriving.close()
    elif crash == "the engine not told":
        with ending(dead, "_wake"):
            letters["redrive"]()
    redriven = DEAD - len(letters["look"]())
    assert (redriven > 0) == (crash in ("in a batch", "the engine not told"))
    assert letters["redrive"]() == DEAD - redriven
    relay(letters, by_hand)
    relay(letters, by_hand)
    if crash == "still broken":
        assert len(letters["look"]()) == DEAD
    else:
        assert sorted(letters["EXPORTS"]) == sorted(f"user{n}/points" for n in range(DEAD))
        assert jobs() == []


def test_a_purge_that_is_ended(letters: dict[str, Any]) -> None:
    next(letters["outbox"].dead.purge("export ZeroDivisionError"))
    assert letters["give_up"]() == DEAD - 1
    assert jobs() == []
