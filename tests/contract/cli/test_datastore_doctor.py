"""Test `userlock doctor --datastore`, as a process."""

from __future__ import annotations

import pytest

import userlock_emulator
from tests.contract.cli.process import Cli


@pytest.fixture
def cli(datastore: userlock_emulator.Emulator) -> Cli:
    cli = Cli("", datastore.env)
    del cli.env["USERLOCK_STORE"]  # not needed
    return cli


def test_the_output(cli: Cli) -> None:
    outcome = cli.run("doctor", "--datastore")
    assert outcome.code == 0, outcome
    assert "datastore emulator/(default)\n" in outcome.out
    assert outcome.out.endswith("5 ok, 1 warning, 0 wrong\n")
    assert "not Datastore" in outcome.out


def test_for_programs(cli: Cli) -> None:
    outcome = cli.run("--json", "doctor", "--datastore", "learn/eu")
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.document
    assert document["verdict"] == "warning"
    assert {each["server"] for each in document["findings"]} == {"datastore learn/eu"}
    facts: dict[str, object] = {}
    for finding in document["findings"]:
        facts |= finding["facts"]
    assert facts["base_version"] is facts["reported"] is facts["exclusive"] is facts["up"] is True
    assert facts["fenced"] is True


def test_nobody_answers(cli: Cli) -> None:
    cli.env["DATASTORE_EMULATOR_HOST"] = "127.0.0.1:1"
    outcome = cli.run("doctor", "--datastore", "--json")
    assert outcome.code == 3
    (finding,) = outcome.document["findings"]
    assert finding["verdict"] == "wrong"
    assert finding["facts"] == {"up": False}
