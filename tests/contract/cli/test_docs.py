"""What docs/cli.md shows of servers: the same lines, with the figures of here."""

from __future__ import annotations

import re
import shlex

import emulator
from tests.contract.cli.conftest import Scene
from tests.contract.cli.process import Cli, Outcome
from tests.documents import Block
from tests.servers import Memcached
from tests.unit.cli.test_docs import DOCTOR, DOCTOR_OF_DATASTORE, PAGE


def run(cli: Cli, block: Block, *more: str) -> tuple[Outcome, str]:
    """Run the one command of a block; also what the page says that it prints."""
    ((line, shown),) = block.commands()
    program, *arguments = shlex.split(line)
    assert program == "userlock"
    return cli.run(*arguments, *more), shown


def checks(text: str) -> list[str]:
    """What was looked at, in its order."""
    return re.findall(r"^  (?:ok|warning|wrong) +(\S+(?: \S+)*?)  ", text + " ", re.MULTILINE)


def test_doctor(on_memcached: Scene) -> None:
    outcome = on_memcached.cli.run("doctor")
    of_memcached = " ".join(PAGE.text.split()).split("For memcached it checks ")[1].split(";")[0]
    listed = re.findall(r"`([a-z ]+)`", of_memcached)
    assert checks(outcome.out) == listed
    assert len(listed) == 14


def test_doctor_of_a_server_that_was_just_started(own_memcached: Memcached) -> None:
    outcome, shown = run(Cli(own_memcached.url()), DOCTOR)

    def words(text: str) -> list[str]:
        return re.sub(r"\d+", "", text).split()

    assert words(outcome.out) == words(shown)


def test_doctor_of_datastore(datastore: emulator.Emulator) -> None:
    cli = Cli("", datastore.env)
    del cli.env["USERLOCK_STORE"]  # none is needed
    outcome, shown = run(cli, DOCTOR_OF_DATASTORE)
    # One check more: that it is an emulator.
    assert [each for each in checks(outcome.out) if each in checks(shown)] == checks(shown)
    told = re.findall(r"^  ok +(?:versions|inserts|base_version) .*(?:\n {9,}.*)*", shown, re.M)
    assert len(told) == 3
    out = " ".join(outcome.out.split())  # a pipe has no width to be folded to
    assert all(" ".join(each.split()) in out for each in told)
