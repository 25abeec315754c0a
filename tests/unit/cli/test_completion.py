"""Test the candidates that shells complete. `tests/contract/cli/test_completion.py` runs shells."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.cli.completion import candidates
from userlock.cli.entry import COMMANDS, _parser


def words(*typed: str) -> list[str]:
    return [each.word for each in candidates(_parser(), typed)]


def parsers(
    parser: argparse.ArgumentParser, *path: str
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield each parser with the words that lead to it."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from parsers(below, *path, name)


@pytest.mark.parametrize("path", [path for path, _ in parsers(_parser())], ids=" ".join)
def test_all_options_and_actions_of_each_command(path: tuple[str, ...]) -> None:
    parser = dict(parsers(_parser()))[path]
    options = [each for each in parser._option_string_actions if each.startswith("--")]
    assert words(*path, "-") == options
    below = [found[-1] for found, _ in parsers(_parser()) if found[:-1] == path and found]
    assert set(below) <= set(words(*path, ""))


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (("",), [module.NAME for module in COMMANDS]),
        (("b",), ["break", "baseline"]),
        (("baseline", ""), ["write", "check"]),
        (("baseline", "check", ""), []),  # a file
        (("completion", "f"), ["fish"]),
        (("holder", ""), []),
        (("outbox", "--json", "redr"), ["redrive"]),
        (("--store", "holder", "wat"), ["watch"]),
        (("--store", ""), []),
        (("--store=memory://", "wat"), ["watch"]),
        (("--store", "=", "memory", ":", "//h", "wat"), ["watch"]),  # as bash breaks words
        (("holder", "--", "--j"), []),
        (("frobnicate", ""), []),
        (("watch", "--interval", "5", "--o"), ["--once"]),
    ],
)
def test_candidates(typed: tuple[str, ...], found: list[str]) -> None:
    assert words(*typed) == found


def test_descriptions_are_those_of_the_help() -> None:
    found = {each.word: each.help for each in candidates(_parser(), ["baseline", "-"])}
    assert found["--file"] == "the baseline (default: userlock-baseline.txt)"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script(terminal: Terminal, shell: str) -> None:
    code, out, err = terminal.run("completion", shell)
    assert (code, err) == (0, "")
    assert f"completion {shell} -- " in out
    assert terminal.run("completion", shell, "--json").document == {"script": out}


@pytest.mark.parametrize(("shell", "between"), [("zsh", ":"), ("fish", "\t")])
def test_words_with_descriptions(terminal: Terminal, shell: str, between: str) -> None:
    out = terminal.run("completion", shell, "--", "outbox", "sta").out
    assert out == f"status{between}show how many jobs wait, run and are dead\n"


def test_no_word_means_no_output(terminal: Terminal) -> None:
    assert terminal.run("completion", "bash", "--", "holder", "ann") == (0, "", "")
