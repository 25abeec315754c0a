"""Test the choice of the command, and wrong command lines."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

import userlock
from tests.unit.cli.terminal import Terminal
from userlock.admin.command import Console, Parser, seconds
from userlock.cli import COMMANDS, main, parser


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "userlock: the following arguments are required: COMMAND (see userlock --help)"),
        (["holdr", "ann"], "invalid choice: 'holdr'"),
        (["holder"], "userlock holder: the following arguments are required: ID"),
        (["holder", "a", "b"], "unrecognized arguments: b"),
        (["holder", "", "--store", "memory://"], "must not be empty"),
        (["holder", "ann", "--jsn"], "userlock holder: unrecognized arguments: --jsn"),
        (["--sotre=memory://u:pw@x", "holder", "ann"], "unrecognized arguments: --sotre=…"),
        (["--stor", "memory://u:pw@x", "holder"], "invalid choice: …"),
        (["outbox", "list", "--deda"], "outbox list: unrecognized arguments: --deda"),
        (["locks", "--interval", "-5"], "argument --interval: "),
        (["holder", "\x1b[2J", "\x1b[2J"], "unrecognized arguments: …"),
        (["locks", "--interval", "fast"], "'fast' is not a duration from 0.1 seconds"),
        (["outbox"], "the following arguments are required: ACTION"),
        (["outbox", "statsu"], "invalid choice: 'statsu'"),
        (["outbox", "show"], "the following arguments are required: KEY"),
        (["outbox", "list", "--most", "0"], "is not a number from 1 to 1000"),
        (["outbox", "list", "--most", "1001"], "is not a number from 1 to 1000"),
        (["outbox", "list", "--most", "²"], "is not a number"),
        (["outbox", "redrive", "--all", "--rate", "0"], "is not a rate from 0.01 to 10000"),
        (["outbox", "redrive", "--all", "--rate", "nan"], "is not a rate from 0.01 to 10000"),
        (["outbox", "purge", "--all", "--yes", "-1"], "is not a number of jobs"),
        (["outbox", "purge", "--all", "--yes"], "expected one argument"),
        (["outbox", "purge", "--all", "--yes", "all"], "is not a number of jobs"),
        (["outbox", "redrive", "KEY", "--all"], "not allowed with argument"),
        (["outbox", "purge", "--all", "--cause", ""], "not allowed with argument"),
        (["outbox", "status", "--late", "soon"], "is not a duration"),
    ],
)
def test_a_mistyped_command_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in complaint(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments", [["locks"], ["holder", "ann"], ["break", "ann", "--yes"], ["doctor"]]
)
def test_no_store(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USERLOCK_STORE", raising=False)
    error = complaint(capsys, *arguments)
    assert "USERLOCK_STORE=memcache://127.0.0.1:11211" in error


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:11211", "as in memcache://127.0.0.1:11211"),
        ("memcached://h", "must begin with one of"),
        ("redis://u:secret@h/x", "the database must be a number"),
        ("nothing://u:secret@h/x", "names no lease store"),
        ("http://[", ""),
    ],
)
def test_a_wrong_address(url: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = complaint(capsys, "holder", "ann", "--store", url)
    assert says in error
    assert "secret" not in error


def test_an_address_in_place_of_a_database(capsys: pytest.CaptureFixture[str]) -> None:
    error = complaint(capsys, "doctor", "--datastore", "redis://u:secret@h/0")
    assert "expected PROJECT/DATABASE" in error
    assert "secret" not in error


def test_a_missing_extra_is_named(terminal: Terminal) -> None:
    def connect(url: str, clock: object) -> userlock.LockService:
        raise ImportError("the Redis store needs redis-py: pip install 'userlock[redis]'")

    terminal._connect = connect  # type: ignore[method-assign]
    code, out, err = terminal.run("holder", "ann")
    assert (code, out) == (2, "")
    assert err == (
        "userlock holder: the Redis store needs redis-py: pip install 'userlock[redis]'\n"
    )


def test_options_stand_before_or_after_the_command(terminal: Terminal) -> None:
    del terminal.environ["USERLOCK_STORE"]
    before = terminal.run("--json", "--store", "memory://a", "holder", "ann")
    after = terminal.run("holder", "--store", "memory://a", "ann", "--json")
    assert before == after
    assert before.document["lock_id"] == "ann"
    assert terminal.urls[-2:] == ["memory://a"] * 2
    terminal.environ["USERLOCK_STORE"] = "memory://b"
    assert terminal.run("holder", "--store", "memory://a", "ann", "--json") == after
    assert terminal.urls[-1] == "memory://a", "the option overrides the environment"


def test_an_empty_option_does_too(terminal: Terminal) -> None:
    """As of a script's unset variable: another store's lock is not what it wants to break."""
    outcome = terminal.run("break", "ann", "--yes", "--store", "")
    assert (outcome.code, "no store is named" in outcome.err) == (2, True)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"userlock {userlock.__version__}\n"


def parsers(above: Parser, *path: str) -> Iterator[list[str]]:
    yield list(path)
    for action in above._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from parsers(below, *path, name)


@pytest.mark.parametrize("path", [*parsers(parser())], ids=" ".join)
def test_help(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    out = capsys.readouterr().out
    assert "\nexit codes:\n  0    fine\n" in out
    assert all(len(line) <= 100 for line in out.splitlines())
    if not path:
        assert all(name in out for name in COMMANDS)
    else:
        assert ("--app" in out) is (path[0] in ("outbox", "flows", "reap", "unique", "quota"))


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), FileNotFoundError("no")])
def test_a_bug_is_not_an_answer(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Python's own exit code would be 1, which means that nobody holds the lock."""

    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(terminal.memory(), "read", fail)
    code, out, err = terminal.run("holder", "ann")
    assert (code, out) == (70, "")
    assert f"{type(error).__name__}: no" in err


def test_a_process_without_standard_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", None)
    console = Console.of_process()
    assert main(["--store", "memory://", "holder", "ann"], console=console) == 1
    for stream in (console.stdin, console.stdout, console.stderr):
        stream.close()


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("0.5", 0.5), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("24h", 86400)],
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    "text", ["", "0", "0.05", "25h", "5 m", "m", "1e3", "nan", "-5", "5d", "\u0665"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="as in 90, 90s, 5m or 2h"):
        seconds(text)
