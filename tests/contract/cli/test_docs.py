"""Test the output of real servers in docs/cli.md: the same lines, with other figures."""

from __future__ import annotations

import re
import shlex

import userlock_emulator
from tests.contract.cli.conftest import Scene
from tests.contract.cli.process import Cli, Outcome
from tests.documents import Block
from tests.servers import Memcached
from tests.unit.cli.test_docs import DOCTOR, DOCTOR_OF_DATASTORE, PAGE


def run(cli: Cli, block: Block, *more: str) -> tuple[Outcome, str]:
    """Run the only command of a block. Return also the output that the page shows."""
    ((line, shown),) = block.commands()
    program, *arguments = shlex.split(line)
    assert program == "userlock"
    return cli.run(*arguments, *more), shown


def checks(text: str) -> list[str]:
    """Return the checks, in order."""
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


def test_doctor_of_datastore(datastore: userlock_emulator.Emulator) -> None:
    cli = Cli("", datastore.env)
    del cli.env["USERLOCK_STORE"]  # not needed
    outcome, shown = run(cli, DOCTOR_OF_DATASTORE)
    # One more check reports the emulator.
    assert [each for each in checks(outcome.out) if each in checks(shown)] == checks(shown)
    told = re.findall(r"^  ok +(?:versions|inserts|base_version) .*(?:\n {9,}.*)*", shown, re.M)
    assert len(told) == 3
    out = " ".join(outcome.out.split())  # output to a pipe is not folded
    assert all(" ".join(each.split()) in out for each in told)
