"""Test the output of real servers in docs/cli.md: the same lines, with other figures."""

from __future__ import annotations

import re
import shlex

import emulator
from tests.contract.cli.conftest import Scene
from tests.contract.cli.process import Cli, Outcome
from tests.documents import Block
from tests.unit.cli.test_docs import DOCTOR, DOCTOR_OF_DATASTORE


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
    outcome, shown = run(on_memcached.cli, DOCTOR)
    assert checks(outcome.out) == checks(shown)
    assert len(checks(shown)) == 14


def test_doctor_of_datastore(datastore: emulator.Emulator) -> None:
    cli = Cli("", datastore.env)
    del cli.env["USERLOCK_STORE"]  # not needed
    outcome, shown = run(cli, DOCTOR_OF_DATASTORE)
    # One more check reports the emulator.
    assert [each for each in checks(outcome.out) if each in checks(shown)] == checks(shown)
    told = re.findall(r"^  ok +(?:versions|inserts|base_version) .*(?:\n {9,}.*)*", shown, re.M)
    assert len(told) == 3
    out = " ".join(outcome.out.split())  # output to a pipe is not folded
    assert all(" ".join(each.split()) in out for each in told)
