"""docs/cookbook/staged-job.md, retry-tiers.md and dead-letters.md: code, and tables of crashes."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import userlock_emulator
from tests.contract.cookbook.conftest import ByHand, Cook, Died
from tests.documents import Page
from userlock.outbox.rows import JobRow

STAGED = Page("docs/cookbook/staged-job.md")
TIERS = Page("docs/cookbook/retry-tiers.md")
LETTERS = Page("docs/cookbook/dead-letters.md")
STAGED_CODE = STAGED.take("python", "def book")
TIERS_CODE = TIERS.take("python", "def call_customer")
LETTERS_CODE = LETTERS.take("python", "def redrive")
FAST, SLOW = "inline://?threads=4", "inline://?threads=1"


def jobs() -> list[Any]:
    return list(JobRow.query(namespace="").fetch(use_cache=False))


def lessons(names: dict[str, Any]) -> list[str]:
    learner = names["Learner"].get_by_id("ann")
    return [] if learner is None else list(learner.lessons)


def relay(names: dict[str, Any], by_hand: ByHand, seconds: float = 120) -> None:
    """Let the relay find what is due after that time, and run it."""
    by_hand.clock.advance(seconds)
    names["outbox"].relay()
    by_hand.deliver_all()


# --- a job in the transaction -------------------------------------------------------------


def test_a_commit_that_fails_leaves_neither(
    cook: Cook, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = cook(STAGED_CODE)
    plain = names["mail_confirmation"].stage

    def stage_and_fail(*args: Any) -> None:
        plain(*args)
        raise LookupError

    with monkeypatch.context() as patch:
        patch.setattr(names["mail_confirmation"], "stage", stage_and_fail)
        with pytest.raises(LookupError):
            names["book"]("ann", "figures")
    relay(names, by_hand)
    assert lessons(names) == jobs() == []
    assert names["MAILS"] == {}


@pytest.mark.parametrize("dropped", [0, 1])
def test_lesson_and_mail(
    cook: Cook, by_hand: ByHand, datastore: userlock_emulator.Emulator, dropped: int
) -> None:
    names = cook(STAGED_CODE)
    if dropped:
        datastore.faults.drop_reply(dropped)
    names["book"]("ann", "figures")
    by_hand.deliver_all()
    assert lessons(names) == ["figures"]
    assert list(names["MAILS"].values()) == ["ann: figures"]
    assert jobs() == []


def test_the_engine_is_not_told(cook: Cook, by_hand: ByHand) -> None:
    names = cook(STAGED_CODE)
    by_hand.lanes["inline://"].down = True
    names["book"]("ann", "figures")
    by_hand.lanes["inline://"].down = False
    assert not names["MAILS"]
    relay(names, by_hand)
    assert list(names["MAILS"].values()) == ["ann: figures"]


@pytest.mark.parametrize("after", [False, True])
def test_a_worker_dies(
    cook: Cook, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    names = cook(STAGED_CODE)
    job = names["mail_confirmation"]
    plain = job.function

    def dying(*args: Any) -> None:
        if after:
            plain(*args)
        raise Died

    names["book"]("ann", "figures")
    with monkeypatch.context() as patch:
        patch.setattr(job, "function", dying)
        with pytest.raises(Died):
            by_hand.deliver_all()
    assert len(names["MAILS"]) == int(after)
    relay(names, by_hand)
    assert list(names["MAILS"].values()) == ["ann: figures"]
    assert jobs() == []


# --- retries with a slow lane -------------------------------------------------------------


def call(names: dict[str, Any], user_id: str) -> None:
    ndb.transaction(lambda: names["call_customer"].stage(user_id, "paid", "call-1"))


def test_a_server_that_is_down_is_asked_from_the_slow_lane(cook: Cook, by_hand: ByHand) -> None:
    names = cook(TIERS_CODE)
    names["DOWN"].add("ann")
    call(names, "ann")
    fast, slow = by_hand.lanes[FAST], by_hand.lanes[SLOW]
    fast.deliver_all()  # asks again at once: it is not due
    assert slow.messages == []
    by_hand.clock.advance(10)
    names["outbox"].run(jobs()[0].key.urlsafe().decode())
    assert len(slow.messages) == 1, "from the second failure on"
    call(names, "bob")
    fast.deliver_all()
    assert names["CALLS"] == [("bob", "call-1")], "others pass"
    names["DOWN"].clear()
    relay(names, by_hand)
    assert names["CALLS"] == [("bob", "call-1"), ("ann", "call-1")]
    assert jobs() == []


def test_eight_attempts(cook: Cook, by_hand: ByHand) -> None:
    names = cook(TIERS_CODE)
    names["DOWN"].add("ann")
    call(names, "ann")
    pauses = []
    while jobs()[0].dead is None:
        began = by_hand.clock.wall()
        names["outbox"].run(jobs()[0].key.urlsafe().decode())
        pauses.append(jobs()[0].ready_at / 1e6 - began)
        by_hand.clock.advance(3600)
    assert len(pauses) == 8
    for number, pause in enumerate(pauses[:-1]):
        assert 5 * 2**number <= pause <= 10 * 2**number + 1
    assert jobs()[0].dead == "cookbook.call_customer ConnectionError"


def test_an_error_that_is_final(
    cook: Cook, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = cook(TIERS_CODE)

    def gone(*args: Any) -> None:
        raise names["Gone"]

    monkeypatch.setattr(names["call_customer"], "function", gone)
    call(names, "ann")
    by_hand.deliver_all()
    assert jobs()[0].dead == "cookbook.call_customer Gone"


@pytest.mark.parametrize("after", [False, True])
def test_a_caller_dies(
    cook: Cook, by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    names = cook(TIERS_CODE)
    job = names["call_customer"]
    plain = job.function

    def dying(*args: Any) -> None:
        if after:
            plain(*args)
        raise Died

    call(names, "ann")
    with monkeypatch.context() as patch:
        patch.setattr(job, "function", dying)
        with pytest.raises(Died):
            by_hand.deliver_all()
    assert jobs()[0].attempts == 1
    relay(names, by_hand)
    assert names["CALLS"] == [("ann", "call-1")] * (1 + after)


# --- dead letters -------------------------------------------------------------------------


@pytest.fixture
def letters(cook: Cook, by_hand: ByHand) -> dict[str, Any]:
    """Provide the names of the page, and thirty dead letters."""
    names = cook(LETTERS_CODE)
    for number in range(30):
        ndb.transaction(lambda: names["export"].stage(f"user{number}", "points"))  # noqa: B023
    by_hand.deliver_all()
    relay(names, by_hand)
    assert len(names["look"]()) == 30
    return names


def test_they_are_shown(letters: dict[str, Any]) -> None:
    (line,) = {each.partition(": ")[2] for each in letters["look"]()}
    assert line.startswith("ZeroDivisionError: no rows in the last quarter (")
    assert LETTERS.path in line


@pytest.mark.slow
@pytest.mark.parametrize("died", ["in a batch", "before the engine", "never"])
def test_a_redrive_that_is_killed(
    letters: dict[str, Any], by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, died: str
) -> None:
    letters["BROKEN"] = False
    dead = letters["outbox"].dead
    if died == "in a batch":
        redriving = dead.redrive_all("export ZeroDivisionError")
        next(redriving)
        redriving.close()
    elif died == "before the engine":
        with monkeypatch.context() as patch:
            patch.setattr(dead, "_wake", die)
            with pytest.raises(Died):
                letters["redrive"]()
    redriven = 30 - len(letters["look"]())
    assert (redriven > 0) == (died != "never")
    assert letters["redrive"]() == 30 - redriven
    relay(letters, by_hand)
    assert sorted(letters["EXPORTS"]) == sorted(f"user{number}/points" for number in range(30))
    assert jobs() == []


def die(*args: Any) -> None:
    raise Died


def test_a_job_that_dies_again_stays(letters: dict[str, Any], by_hand: ByHand) -> None:
    assert letters["redrive"]() == 30
    relay(letters, by_hand)
    relay(letters, by_hand)
    assert len(letters["look"]()) == 30


def test_a_purge_that_is_ended(letters: dict[str, Any]) -> None:
    purging = letters["outbox"].dead.purge("export ZeroDivisionError")
    next(purging)
    purging.close()
    left = len(letters["look"]())
    assert 0 < left < 30
    assert letters["give_up"]() == left
    assert jobs() == []
