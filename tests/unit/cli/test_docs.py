"""docs/cli.md says what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from userlock.cli import command
from userlock.cli.entry import COMMANDS, _parser

DOCS = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
EXAMPLES = re.findall(r"(?:^    \$ |`)userlock ([a-z][^`\n]*)", DOCS, re.MULTILINE)


@pytest.mark.parametrize("line", EXAMPLES)
def test_each_example_is_a_command_line(line: str) -> None:
    options = _parser().parse_args(shlex.split(line))
    assert options.command in line


def test_each_command_has_an_example() -> None:
    assert {line.split()[0] for line in EXAMPLES} == {module.NAME for module in COMMANDS}


def test_the_exit_codes() -> None:
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", DOCS, re.MULTILINE)}
    assert documented == {
        *(command.FINE, command.NO, command.USAGE, command.UNREACHABLE, command.BUG),
        *(command.INTERRUPTED, command.NO_READER),
    }


def test_each_option_is_there() -> None:
    text = _parser().format_help() + "".join(
        part.format_help()
        for action in _parser()._actions
        for part in (getattr(action, "choices", None) or {}).values()
    )
    for option in set(re.findall(r"(?<![\w-])--[a-z]+", DOCS)):
        assert option in text
