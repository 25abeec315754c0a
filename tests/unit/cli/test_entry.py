"""Test the choice of the command, and wrong command lines."""

from __future__ import annotations

import pytest

import userlock
from tests.unit.cli.terminal import Terminal
from userlock.cli.command import Parser
from userlock.cli.console import Console
from userlock.cli.entry import COMMANDS, main

NAMES = [module.NAME for module in COMMANDS]


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the error for a wrong command line: one line."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            [],
            "is given. Choose from: holder, break, watch, doctor, baseline, outbox, ",
        ),
        (["holdr", "ann"], "there is no 'holdr'; did you mean holder?"),
        (["frobnicate"], "Choose from: holder, break, watch, doctor"),
        (["holder"], "userlock holder: the following arguments are required: ID"),
        (["holder", "a", "b"], "unrecognized arguments: b"),
        (["holder", "ann", "--jsn"], "unrecognized arguments: --jsn"),
        (["holder", "\x1b[2J", "\x1b[2J"], "unrecognized arguments: …"),
        (["watch", "--interval", "fast"], "'fast' is not a number of seconds"),
    ],
)
def test_a_mistyped_command_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in complaint(capsys, *arguments)


@pytest.mark.parametrize("quote", ["'", ""])  # Python 3.14 quotes no choices
def test_a_mistyped_command_on_any_python(quote: str, capsys: pytest.CaptureFixture[str]) -> None:
    choices = ", ".join(f"{quote}{name}{quote}" for name in ("holder", "break"))
    with pytest.raises(SystemExit):
        Parser(prog="userlock").error(f"invalid choice: 'holdr' (choose from {choices})")
    said = "there is no 'holdr'; did you mean holder? Choose from: holder, break"
    assert said in capsys.readouterr().err


#: They work on files, or on an app.
_OTHERS = ("baseline", "outbox", "flows", "reap", "unique", "quota")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in _OTHERS])
def test_no_store(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USERLOCK_STORE", raising=False)
    needs = {"holder": ["ann"], "break": ["ann", "--yes"]}.get(name, [])
    error = complaint(capsys, name, *needs)
    assert "USERLOCK_STORE=memcache://127.0.0.1:11211" in error


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("127.0.0.1:11211", "as in memcache://127.0.0.1:11211"),
        ("memcached://h", "must begin with one of"),
        ("memcache://h?prefx=a", "unknown option prefx"),
        ("memcache://h:99999", "port does not exist"),
        ("redis://u:secret@h/x", "the database must be a number"),
        ("nothing://u:secret@h/x", "names no lease store"),
        ("http://[", ""),
    ],
)
def test_a_wrong_address(url: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = complaint(capsys, "holder", "ann", "--store", url)
    assert says in error
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


def test_the_option_overrides_the_environment(terminal: Terminal) -> None:
    terminal.run("holder", "ann", "--store", "memory://b")
    assert terminal.urls[-1] == "memory://b"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"userlock {userlock.__version__}\n"


@pytest.mark.parametrize("arguments", [[], *([name] for name in NAMES)])
def test_help_has_the_exit_codes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--help"]) == 0
    out = capsys.readouterr().out
    assert "\nexit codes:\n  0    fine\n" in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_help_names_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for module in COMMANDS:
        assert module.NAME in out


def test_a_bug_is_not_an_answer(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own exit code would be 1, which means that nobody holds the lock."""
    monkeypatch.setattr(terminal.memory(), "read", lambda *args, **kwargs: 1 / 0)
    code, out, err = terminal.run("holder", "ann")
    assert (code, out) == (70, "")
    assert "ZeroDivisionError" in err


def test_a_process_without_standard_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", None)
    console = Console.of_process()
    assert main(["--store", "memory://", "holder", "ann"], console=console) == 1
    for stream in (console.stdin, console.stdout, console.stderr):
        stream.close()
