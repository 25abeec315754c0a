"""The trial's engine loses, repeats and delays messages; one without faults does not."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.chaos.mail import Mailbox
from userlock.outbox import Engine, Wake


def taken(mailbox: Mailbox) -> list[str]:
    keys = []
    while (key := mailbox.take()) is not None:
        keys.append(key)
    return keys


def test_it_is_an_engine(tmp_path: Path) -> None:
    assert isinstance(Mailbox(tmp_path, None), Engine)


def test_without_faults_each_message_is_taken_once_whatever_its_delay(tmp_path: Path) -> None:
    sender, worker = Mailbox(tmp_path, None), Mailbox(tmp_path, None)
    assert sender.wake([Wake("a", "n", 0.0), Wake("b-_", "n", 900.0)], 0.3) == [None, None]
    assert sorted(taken(worker)) == ["a", "b-_"]
    assert taken(sender) == []


def test_faults(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, Random(1))
    sent = [str(number) for number in range(400)]
    errors = [error for key in sent for error in mailbox.wake([Wake(key, "n")], 0.0)]
    assert 0 < sum(error is not None for error in errors) < 60
    now = taken(mailbox)
    everything = now + taken(Mailbox(tmp_path, None))
    assert 250 < len(set(everything)) < 370  # some are lost
    assert len(everything) > len(set(everything)) + 20  # some come twice
    assert len(now) < len(everything) - 10  # some come late
    assert now != sorted(now, key=int)


def test_a_delay_is_sometimes_ignored(tmp_path: Path) -> None:
    mailbox = Mailbox(tmp_path, Random(1))
    mailbox.wake([Wake(str(number), "n", 900.0) for number in range(100)], 0.3)
    early = taken(mailbox)
    assert 0 < len(early) < 60
