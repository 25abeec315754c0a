"""Dead letters: listed, redriven by one or by cause, at a rate, resumable; purged."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from google.cloud import ndb

from tests.contract.outbox.conftest import Box, Mailbox
from userlock.outbox import Outbox

#: The errors of `work`, by owner; it succeeds for others.
Errors = dict[str, type[Exception]]


class Worse(Exception):
    """Begins like no other."""


@pytest.fixture
def errors() -> Errors:
    return {"ann": ValueError, "bob": Worse, "cem": ValueError}


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def dead(outbox: Outbox, mailbox: Mailbox, errors: Errors, ran: list[str]) -> list[str]:
    """Make three dead letters of two causes; return their keys."""

    @outbox.job(name="work", never_retry=[Exception])
    def work(user_id: str, secret: str = "") -> None:
        if user_id in errors:
            raise errors[user_id](f"no, {user_id}")
        ran.append(user_id)

    keys = [work.stage_now(owner, secret="x").key for owner in errors]
    mailbox.deliver_all()
    return keys


def causes(outbox: Outbox, cause: str = "") -> list[str]:
    return [letter.owner for letter in outbox.dead.list(cause)]


def test_they_are_listed_by_cause(outbox: Outbox, dead: list[str]) -> None:
    assert sorted(causes(outbox)) == ["ann", "bob", "cem"]
    assert sorted(causes(outbox, "work ValueError")) == ["ann", "cem"]
    assert causes(outbox, "work Worse") == ["bob"]
    assert causes(outbox, "wor ") == causes(outbox, "worker") == []
    assert (outbox.dead.count(), outbox.dead.count("work ValueError")) == (3, 2)
    (letter,) = outbox.dead.list("work Worse")
    assert letter.call == "work('bob', secret='x')"
    assert letter.last_error.startswith("Worse: no, bob")
    assert len(outbox.dead.list(most=2)) == 2


def test_neither_message_nor_relay_runs_one(box: Box, dead: list[str], ran: list[str]) -> None:
    box.clock.advance(10**6)
    assert box.outbox.relay().woken == 0
    for key in dead:
        box.outbox.run(key)
    assert ran == []


def test_one_is_redriven_once_with_all_its_attempts_and_its_history(
    box: Box, dead: list[str], errors: Errors, ran: list[str]
) -> None:
    key = dead[0]
    (first,) = (letter for letter in box.outbox.dead.list() if letter.owner == "ann")
    assert box.outbox.dead.redrive(key)
    box.mailbox.deliver_all()
    (again,) = (letter for letter in box.outbox.dead.list() if letter.owner == "ann")
    assert (again.attempts, again.redriven, again.call) == (1, 1, first.call)
    assert again.first_error_at == first.first_error_at
    errors.clear()
    assert box.outbox.dead.redrive(key)
    assert not box.outbox.dead.redrive(key)
    box.mailbox.deliver_all()
    assert ran == ["ann"]
    assert not box.outbox.dead.redrive(key), "it is done"


@pytest.mark.parametrize("how", ["one", "by-cause"])
def test_a_job_of_nobody_is_redriven(box: Box, errors: Errors, ran: list[str], how: str) -> None:
    @box.outbox.job(name="sweep", owner=None, never_retry=[Worse])
    def sweep() -> None:
        if errors:
            raise Worse
        ran.append("swept")

    key = sweep.stage_now().key
    box.mailbox.deliver_all()
    errors.clear()
    if how == "one":
        assert box.outbox.dead.redrive(key)
    else:
        assert list(box.outbox.dead.redrive_all("sweep")) == [(key, True)]
    box.mailbox.deliver_all()
    assert ran == ["swept"]


LONG = type("Long" * 1_000, (Exception,), {})


@pytest.mark.parametrize(
    ("cause", "found"),
    [("mail", 1), (f"mail {LONG.__name__}", 1), ("x" * 2_000, 0), ("\udcff", 0)],
    ids=["job", "long class", "long text", "no text"],
)
def test_any_text_may_be_given_as_a_cause(box: Box, cause: str, found: int) -> None:
    @box.outbox.job(name="mail", never_retry=[LONG])
    def mail(user_id: str) -> None:
        raise LONG

    mail.stage_now("ann")
    box.mailbox.deliver_all()
    assert len(box.outbox.dead.list(cause)) == box.outbox.dead.count(cause) == found


def test_a_job_that_nobody_knows_is_dead_after_days(box: Box) -> None:
    other = Outbox(Mailbox(), clock=box.clock)
    other.job(name="gone")(lambda user_id: None).stage_now("ann")
    for _ in range(5):
        box.outbox.relay()
        box.mailbox.deliver_all()
        box.clock.advance(86_400)
    (letter,) = box.outbox.dead.list()
    assert letter.cause == "gone UnknownJob"
    assert letter.attempts == 0, "no code has run that could fail"
    assert box.runs == [*[("gone", "failed", 1)] * 3, ("gone", "dead", 1)], (
        "each is a first attempt"
    )
    assert box.outbox.dead.redrive(letter.key)
    box.mailbox.deliver_all()
    assert box.outbox.dead.list() == [], "it has three days again"


def test_a_letter_is_named_by_its_key_alone(outbox: Outbox, dead: list[str]) -> None:
    letter = outbox.dead.list()[0]
    for change in (outbox.dead.redrive, outbox.dead.delete):
        with pytest.raises(ValueError, match="no key of a job"):
            change("x")
        with pytest.raises(ValueError, match="something else than a job"):
            change(ndb.Key("Mail", 1).urlsafe().decode())
    assert outbox.dead.delete(letter.key)
    assert not outbox.dead.redrive(letter.key), "it is gone"


def test_another_outbox_leaves_a_letter(outbox: Outbox, dead: list[str]) -> None:
    other = Outbox(Mailbox(), name="other").dead
    key = outbox.dead.list()[0].key
    assert not other.redrive(key)
    assert not other.delete(key)
    assert outbox.dead.redrive(key)


@pytest.mark.parametrize(
    ("option", "value", "error"),
    [
        *[("rate", each, ValueError) for each in (0, -1, float("nan"))],
        ("most", -1, ValueError),
        ("most", 1.5, TypeError),
        *[(name, "5", TypeError) for name in ("rate", "most", "busy_seconds", "died_by")],
        ("cause", None, TypeError),
    ],
)
def test_an_option_that_is_none_is_named(
    outbox: Outbox, dead: list[str], option: str, value: Any, error: type[Exception]
) -> None:
    letters = outbox.dead
    functions: list[Any] = [letters.list, letters.count, letters.redrive_all, letters.purge]
    for function in functions:
        if option in inspect.signature(function).parameters:
            with pytest.raises(error, match=f"{option} must be"):
                list(function(**{"cause": "", option: value}))
    assert letters.count() == len(dead)
