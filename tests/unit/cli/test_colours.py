"""Colours are for terminals, and the text is the same without them."""

from __future__ import annotations

import re

import pytest

from tests.unit.cli.terminal import Terminal

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture
def scene(terminal: Terminal) -> Terminal:
    terminal.hold("ann")
    terminal.wait("ann", "w", "GET /badges")
    return terminal


COMMANDS = pytest.mark.parametrize(
    "arguments",
    [("holder", "ann"), ("holder", "ben"), ("watch", "--once"), ("doctor",)],
    ids=" ".join,
)


@COMMANDS
def test_a_terminal_has_colours(scene: Terminal, arguments: tuple[str, ...]) -> None:
    assert COLOUR.search(scene.run(*arguments, tty=True).out)


@COMMANDS
def test_a_pipe_has_none(scene: Terminal, arguments: tuple[str, ...]) -> None:
    assert "\x1b" not in scene.run(*arguments).out


@COMMANDS
@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_is_to_have_none(
    scene: Terminal, arguments: tuple[str, ...], name: str, value: str
) -> None:
    scene.environ[name] = value
    assert not COLOUR.search(scene.run(*arguments, tty=True).out)


def test_an_empty_variable_does_not_count(scene: Terminal) -> None:
    """As no-color.org says."""
    scene.environ["NO_COLOR"] = ""
    assert COLOUR.search(scene.run("holder", "ann", tty=True).out)


def test_the_text_is_the_same(scene: Terminal) -> None:
    with_colours = scene.run("holder", "ann", tty=True).out
    assert COLOUR.sub("", with_colours) == scene.run("holder", "ann").out


def test_json_has_none(scene: Terminal) -> None:
    assert "\x1b" not in scene.run("holder", "ann", "--json", tty=True).out
