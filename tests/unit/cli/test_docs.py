"""docs/cli.md says what there is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import ModuleType

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


def codes_in(text: str, line: str) -> dict[int, str]:
    """What is said of each exit code; `line` finds them."""
    return {int(code): says for code, says in re.findall(line, text, re.MULTILINE)}


DOCUMENTED = codes_in(DOCS, r"^\| (\d+) \| (.+) \|$")
IN_HELP = r"^  (\d+) +(.+)$"


def test_the_exit_codes() -> None:
    assert set(DOCUMENTED) == {
        *(command.FINE, command.NO, command.USAGE, command.UNREACHABLE, command.BUG),
        *(command.INTERRUPTED, command.NO_READER),
    }


def test_the_help_has_the_same_exit_codes() -> None:
    assert codes_in(_parser().format_help(), IN_HELP) == DOCUMENTED


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.NAME)
def test_the_help_of_each_command_has_those_that_it_can_end_with(module: ModuleType) -> None:
    listed = codes_in(_help_of(module.NAME), IN_HELP)
    expected = dict(DOCUMENTED)
    if module.NO_MEANS:
        expected[command.NO] = f"the answer is no: {module.NO_MEANS}"
    else:
        del expected[command.NO]
    assert listed == expected


def test_each_option_is_there() -> None:
    text = _parser().format_help() + "".join(_help_of(module.NAME) for module in COMMANDS)
    for option in set(re.findall(r"(?<![\w-])--[a-z]+", DOCS)):
        assert option in text


def _help_of(name: str) -> str:
    choices = (getattr(action, "choices", None) or {} for action in _parser()._actions)
    return next(str(each[name].format_help()) for each in choices if name in each)
