"""Test docs/cli.md: it describes every option, and shows the real output."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.documents import Block, Page
from tests.unit.cli.terminal import Outcome, Terminal
from userlock import waits
from userlock.admin import command
from userlock.cli import COMMANDS, command_of, parser

PAGE = Page("docs/cli.md")
SETTING = PAGE.take("sh", "export USERLOCK_STORE")
#: `tests/contract/companions/test_apps.py` runs it.
APP = PAGE.take("sh", "export USERLOCK_APP")
#: `tests/contract/cli/test_docs.py` runs it.
COMPLETION = PAGE.take("sh", "shtab")
HOLDER = PAGE.take("console", "holder ann")
BREAK = PAGE.take("console", "break ann")
LOCKS = PAGE.take("console", "userlock locks")
#: `tests/contract/cli/test_docs.py` runs these on a real memcached and an emulator.
DOCTOR = PAGE.take("console", "doctor --quiet")
DOCTOR_OF_DATASTORE = PAGE.take("console", "doctor --datastore")
CHECK = PAGE.take("console", "baseline check")
#: `tests/contract/outbox/operators/test_status.py` runs it.
OUTBOX = PAGE.take("console", "outbox status")
#: `tests/contract/idempotency/operators/test_command_line.py` runs it.
FLOWS = PAGE.take("console", "flows list")

DOCS = PAGE.text
EXAMPLES = re.findall(r"(?:^\$ |`|\| )userlock ([a-z][^`\n]*)", DOCS, re.MULTILINE)


@pytest.mark.parametrize("line", EXAMPLES)
def test_each_example_is_a_command_line(line: str) -> None:
    options = parser().parse_args(shlex.split(line))
    assert options.command in line


def test_each_command_has_an_example() -> None:
    assert {line.split()[0] for line in EXAMPLES} == set(COMMANDS)


def codes_in(text: str, line: str) -> dict[int, str]:
    return {int(code): says for code, says in re.findall(line, text, re.MULTILINE)}


IN_HELP = r"^  (\d+) +(.+)$"
DOCUMENTED = codes_in(parser().format_help(), IN_HELP)


def test_the_exit_codes_are_in_each_help() -> None:
    on_the_page = DOCS.split("Exit codes: ")[1].split("\n\n")[0]
    assert set(re.findall(r"\b\d+\b", on_the_page)) <= {str(code) for code in DOCUMENTED}
    assert set(DOCUMENTED) == {
        *(command.FINE, command.NO, command.USAGE, command.UNREACHABLE, command.BUG),
        *(command.INTERRUPTED, command.NO_READER),
    }
    for name in COMMANDS:
        found = command_of(name)
        expected = {**DOCUMENTED, command.NO: f"the answer is no: {found.no}"}
        if not found.no:
            del expected[command.NO]
        below = command.Parser(prog=name)
        found.fill(below)
        assert codes_in(below.format_help(), IN_HELP) == expected, name


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    found = {each for each in parser._option_string_actions if each.startswith("--")}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for each in action.choices.values() for option in options_of(each)}
    return found


def test_the_options_are_those_of_the_parsers() -> None:
    """The page shows the most important ones; `--help` has all."""
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", DOCS))
    assert shown
    assert shown <= options_of(parser())


# --- what it prints -----------------------------------------------------------------------


@pytest.fixture
def scene(terminal: Terminal) -> Terminal:
    """Return a terminal with the scene of the page: three locks, two of them with waiters."""
    terminal.environ |= dict(
        each.split("=", 1) for each in shlex.split(SETTING.text) if "=" in each
    )
    began = terminal.clock.now()
    today = datetime.datetime.now().astimezone().replace(hour=13, minute=38, second=50)
    terminal.clock._wall = today.timestamp() - began

    def at(seconds: float) -> None:
        terminal.clock.advance(began + seconds - terminal.clock.now())

    lease = terminal.hold("ann", "POST /answers", "web-1/77")
    terminal.hold("carl")
    at(5.2)
    terminal.wait("ann", "j", "nightly award-badges", "batch", process="jobs-1/9")
    at(12.2)
    terminal.wait("ann", "w", "GET /badges", process="web-2/12")
    at(13.6)
    terminal.hold("bob@example.com", "POST /videos", "web-2/12")
    at(13.8)
    terminal.wait("bob@example.com", "v", "GET /profile", process="web-1/77")
    at(13.9)
    terminal.wait("ann", "x", "POST /answers", process="web-1/78")
    at(15)
    waits.run(terminal.service.extend, lease, 60)
    return terminal


def run(terminal: Terminal, block: Block, **options: Any) -> tuple[Outcome, str]:
    """Run the only command of a block. Return also the output that the page shows."""
    ((line, shown),) = block.commands()
    program, *arguments = shlex.split(line.rpartition(" | ")[2])
    assert program == "userlock"
    return terminal.run(*arguments, **options), shown


@pytest.mark.parametrize("block", [HOLDER, BREAK], ids=str)
def test_the_output_is_as_shown(scene: Terminal, block: Block) -> None:
    outcome, shown = run(scene, block)
    assert (outcome.err, outcome.out) == ("", shown)
    assert scene.urls[-1] == "memcache://127.0.0.1:11211?prefix=learn", "of the environment"


def test_locks_draws_the_table_as_shown(scene: Terminal) -> None:
    scene.clock.advance(1)
    outcome, shown = run(scene, LOCKS)
    assert outcome.out == shown


# --- put sites ----------------------------------------------------------------------------


def test_baseline_check(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app").mkdir()
    for name in ("points", "badges", "learners"):
        Path(f"app/{name}.py").touch()
    known = [f"app/points.py::old{each} PutWithoutLock Learner\n" for each in range(40)]
    known.append("app/badges.py::award ReadWithoutLock Learner\n")
    Path("userlock-baseline.txt").write_text("".join(known))
    seen = []
    for function in (*(f"old{each}" for each in range(40)), "finish"):
        put = {"file": "app/points.py", "line": 22, "function": function}
        read = {"file": "app/learners.py", "line": 31, "function": "load"}
        facts = {"violation": "PutWithoutLock", "kind": "Learner", "put": put, "read": read}
        seen.append(json.dumps({"message": "a put", "userlock_site": facts}) + "\n")
    Path("report.jsonl").write_text("".join(seen))
    outcome, shown = run(terminal, CHECK)
    assert (outcome.out, outcome.code) == (shown, command.NO)
