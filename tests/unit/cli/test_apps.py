"""Test how `userlock outbox` finds the app's outbox, and wrong command lines. No Datastore."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.terminal import Terminal
from userlock.apps import find_object
from userlock.cli import main
from userlock.errors import ConfigurationError
from userlock.outbox import Outbox


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to an app's folder. Its modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    (tmp_path / "shopping").mkdir()
    for name, text in {
        "shop.py": "import userlock.outbox\n"
        "class site:\n    box = userlock.outbox.Outbox('inline://')\n"
        "outbox = site.box\nother = 7\nprint('not an answer')\n",
        "shopping/__init__.py": "",
        "shopping/main.py": "from shop import outbox\n",
        "broken.py": "import userlock\n\nraise ValueError('no \\x1b[2J setting')\n",
        "needy.py": "import there_is_no_such_module\n",
        "wrong.py": "def f(:\n",
        "ends.py": "import sys\nsys.exit(3)\n",
    }.items():
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in {"shop", "shopping", "broken", "needy", "wrong", "ends"}:
            del sys.modules[name]


@pytest.mark.parametrize("name", ["shop:outbox", "shop:site.box", "shopping.main:outbox"])
def test_it_is_found_in_the_current_directory(name: str) -> None:
    assert find_object(name, Outbox, "outbox").jobs == {}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shop", "names no outbox"),
        ("shop:", "names no outbox"),
        (":outbox", "names no outbox"),
        ("shop:outbox()", "names no outbox"),
        ("shop.py:outbox", "name the module without .py"),
        ("../shop:outbox", "names no outbox"),
        ("a b:c", "names no outbox"),
        *((name, "names no outbox") for name in ("a:b:c", "/etc/passwd:a", "shop:outbox\n")),
        ("\x1b[2J:x", r"'\\x1b[2J:x' names no outbox"),
        ("shop:nothing", "shop has no 'nothing'"),
        ("shop:site.nothing", "shop.site has no 'nothing'"),
        ("shop:other", "shop:other is no userlock.outbox.Outbox, but of the type int"),
        ("nowhere:outbox", "there is no module nowhere, in /"),
        ("shopping.nowhere:outbox", "there is no module shopping.nowhere"),
        ("nowhere.shop:outbox", "there is no module nowhere, in /"),
        ("broken:outbox", r"cannot be imported: no \x1b[2J setting (/"),
        ("broken:outbox", "broken.py:3)"),
        ("needy:outbox", "needy cannot be imported: No module named 'there_is_no_such_module' (/"),
        ("wrong:outbox", "cannot be imported: invalid syntax (wrong.py, line 1)\n"),
        ("ends:outbox", "cannot be imported: SystemExit: 3"),
    ],
)
def test_what_is_wrong_is_said(terminal: Terminal, name: str, says: str) -> None:
    outcome = terminal.run("outbox", "status", "--app", name)
    assert (outcome.code, outcome.out) == (2, "")
    assert says in outcome.err
    assert "Traceback" not in outcome.err
    assert all(line.isprintable() for line in outcome.err.split("\n"))


def test_no_app_is_named(terminal: Terminal) -> None:
    outcome = terminal.run("outbox", "status", "--json")
    assert outcome.code == 2
    assert "USERLOCK_OUTBOX=main:outbox" in outcome.document["error"]


def test_the_option_overrides_the_environment(terminal: Terminal) -> None:
    terminal.environ["USERLOCK_OUTBOX"] = "nowhere:outbox"
    outcome = terminal.run("outbox", "status", "--app", "shop:nothing")
    assert "shop has no 'nothing'" in outcome.err
    assert "no module nowhere" in terminal.run("outbox", "status").err


@pytest.mark.parametrize("fails", ["1 / 0", "exit('no project')", "needs()"])
def test_a_client_that_cannot_be_made_is_the_apps_fault(
    app: Path, terminal: Terminal, fails: str
) -> None:
    text = "import userlock.outbox\ndef needs(x): ...\n"
    text += f"outbox = userlock.outbox.Outbox('inline://', client=lambda: {fails})\n"
    (app / "wrong.py").write_text(text)
    outcome = terminal.run("outbox", "status", "--app", "wrong:outbox")
    assert (outcome.code, outcome.out) == (2, "")
    assert "wrong:outbox: its function for an ndb client fails: " in outcome.err
    assert "Traceback" not in outcome.err


def test_an_app_in_place_of_its_client(app: Path, terminal: Terminal) -> None:
    (app / "wrong.py").write_text("import flask\napp = flask.Flask(__name__)\n")
    outcome = terminal.run("unique", "check", "--app", "wrong:app")
    assert (outcome.code, outcome.out) == (2, "")
    assert "name the app's client, or the app itself by USERLOCK_APP" in outcome.err


def test_an_outbox_without_a_client_says_so(terminal: Terminal) -> None:
    outcome = terminal.run("outbox", "status", "--app", "shop:outbox")
    assert (outcome.code, outcome.out) == (2, "")
    assert "client=ndb.Client" in outcome.err
    assert "not an answer" in outcome.err, "what the app prints is kept out of the answer"


def test_the_cause_of_a_failed_import_is_kept() -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_object("broken:outbox", Outbox, "outbox")
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    "command",
    [
        *(["quota", action] for action in ("check", "recount")),
        *(["unique", action] for action in ("check", "repair")),
        *(["flows", action, "--user", "ann", "key"] for action in ("show", "complete")),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("name", ["a/b", "n" * 101, "\x1b"])
def test_a_namespace_that_cannot_be(
    command: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--namespace", name]) == 2
    err = capsys.readouterr().err
    assert "is no namespace: up to 100 letters" in err
    assert err.count("\n") == 1
    assert "\x1b" not in err
