"""Test the output of real servers in docs/cli.md: the same lines, with other figures."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import userlock_emulator
from tests.contract.cli.conftest import Scene
from tests.contract.cli.process import Cli, Outcome
from tests.documents import Block
from tests.unit.cli.test_docs import COMPLETION, DOCTOR, DOCTOR_OF_DATASTORE, PAGE


def run(cli: Cli, block: Block, *more: str) -> tuple[Outcome, str]:
    """Run the only command of a block. Return also the output that the page shows."""
    ((line, shown),) = block.commands()
    program, *arguments = shlex.split(line)
    assert program == "userlock"
    return cli.run(*arguments, *more), shown


def checks(text: str) -> list[str]:
    return re.findall(r"^  (?:ok|warning|wrong) +(\S+(?: \S+)*?)  ", text + " ", re.MULTILINE)


def test_doctor(on_memcached: Scene) -> None:
    outcome, shown = run(on_memcached.cli, DOCTOR)
    assert outcome.out.splitlines()[1:] == shown.splitlines()[1:]
    listed = " ".join(PAGE.text.split()).split("store is checked: ")[1].split(".")[0]
    every = on_memcached.cli.run("doctor")
    assert checks(every.out) == re.findall(r"`([a-z ]+)`", listed)


def test_doctor_of_datastore(datastore: userlock_emulator.Emulator) -> None:
    cli = Cli("", datastore.env)
    del cli.env["USERLOCK_STORE"]  # not needed
    outcome, shown = run(cli, DOCTOR_OF_DATASTORE)
    first, *found, last = outcome.out.splitlines()
    assert first == "datastore emulator/(default)"
    assert last == shown.splitlines()[-1].replace("0 warning", "1 warning")
    assert checks("\n".join(found)) == ["emulator"], "which the page has not"
    outcome = cli.run("--json", "doctor", "--datastore", "learn/eu")
    assert (outcome.code, outcome.err, outcome.document["verdict"]) == (0, "", "warning")
    findings = outcome.document["findings"]
    assert {each["server"] for each in findings} == {"datastore learn/eu"}
    assert [each["verdict"] for each in findings] == ["ok"] * 5 + ["warning"]


#: Press the tab key: call the registered function as bash does.
TAB = """
press_tab() {
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
    "$(complete -p userlock | sed 's/.*-F \\([^ ]*\\) .*/\\1/')" userlock "${@: -1}" "${@: -2:1}"
    echo "${COMPREPLY[*]}"
}
"""


def test_bash_completes_the_command() -> None:
    presses = "press_tab userlock hol\npress_tab userlock outbox list --d\n"
    program = f"{COMPLETION.text}{TAB}{presses}"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", program],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.stderr) == (["holder", "--dead"], "")
