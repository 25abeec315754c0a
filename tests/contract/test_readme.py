"""The examples of the README, and two that it links to, work as written."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from google.cloud import ndb

import userlock
import userlock_emulator
from sample_app.__main__ import main
from sample_app.lab import command
from tests.documents import ROOT, Page
from userlock_emulator import memcache

PAGE = Page("README.md")
ANN = ("ann", "")
INSTALL = PAGE.take("sh", "pip install")
HANDLER = PAGE.take("python", "# points.py")
#: Run by `tests/system/test_installed.py`, with the installed library.
IN_A_TERMINAL = PAGE.take("sh", "flask --app points run")
VIOLATION = PAGE.take("text", "PutWithoutLock")
TRANSACTIONS = Page("docs/transactions.md")
AROUND_A_TRANSACTION = TRANSACTIONS.take("python", "buy_certificate")
BENCHMARKS = Page("docs/benchmarks.md")
#: The run behind the table of docs/benchmarks.md.
LAB = """\
8 clients, 10 requests each, 20 ms between reading and writing, 25 % batch; Datastore pessimistic

                            none  transaction   lock  lock-outage
accepted                      80           80     80           38
lost updates                  66            0      0            0
refused (409)                  0            0      0           42
timed out (503)                0            0      0            0
failed                         0            0      0            0
retries                        0           16      0            0
degraded                       0            0      0           53
accepted per second        121.8         12.4   29.4         28.5
median wait, ms                0            2    157            2
wait, 99th percentile, ms      0        6,040  2,076          955
longest wait, ms               0        6,040  2,076          955
interactive p99, ms            0        5,238    263          227
batch p99, ms                  0        6,040  2,076          955
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Provide a function that runs code like the README: with the emulator and a memcached."""
    with userlock_emulator.start() as datastore, memcache.start() as server:
        for name, value in datastore.env.items():
            monkeypatch.setenv(name, value)
        # ndb has one class per kind in a process; the README's are its own.
        monkeypatch.setattr(ndb.Model, "_kind_map", {})

        def execute(code: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
            code = code.replace("127.0.0.1:11211", server.address)
            names = {"__name__": "points", "__file__": "/app/points.py"} if names is None else names
            exec(compile(code, "/app/points.py", "exec"), names)  # noqa: S102 (our own README)
            return names

        yield execute


def test_the_handler_works_when_pasted_into_a_file(run: Any) -> None:
    names = run(HANDLER.text)
    client = names["app"].test_client()
    for points in (5, 10):
        answer = client.post("/users/ann/exercise-finished", auth=ANN)
        assert answer.get_json() == {"points": points}
    names["service"].acquire("ann")  # strangers do not wait for it
    for asks in ({}, {"auth": ("bob", "")}):
        assert client.post("/users/ann/exercise-finished", **asks).status_code == 403


def test_it_is_the_example_to_copy_first() -> None:
    file = ROOT / "examples/minimal/points.py"
    assert file.read_text() == HANDLER.text
    assert len(HANDLER.text.splitlines()) <= 40


def test_without_its_lock_it_fails_as_the_readme_shows(run: Any) -> None:
    names = run(HANDLER.text)
    app = names["app"]
    app.testing = True
    app.test_client().post("/users/ann/exercise-finished", auth=ANN)
    without = re.sub(
        r"^    with userlock.*\n((?:        .*\n)+)", _dedent, HANDLER.text, flags=re.M
    )
    assert "global_lock" not in without
    app = run(without)["app"]
    app.testing = True
    with pytest.raises(userlock.PutWithoutLock) as caught:
        app.test_client().post("/users/ann/exercise-finished", auth=ANN)
    assert f"userlock.errors.PutWithoutLock: {caught.value}\n" == VIOLATION.text


def _dedent(match: re.Match[str]) -> str:
    return re.sub(r"^    ", "", match[1], flags=re.MULTILINE)


def test_what_it_installs_is_in_the_checkout() -> None:
    program, command, *packages = shlex.split(INSTALL.text)
    assert (program, command) == ("pip", "install")
    for each in packages:
        folder, _, extra = each.rstrip("]").partition("[")
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        assert not extra or extra in project["optional-dependencies"]


def test_a_lock_around_a_transaction(run: Any) -> None:
    names = run(HANDLER.text)
    AROUND_A_TRANSACTION.run(names)
    with ndb.Client().context(), userlock.scope(names["service"]):
        with userlock.global_lock("ann"):
            names["User"](id="ann", points=150).put()
        names["buy_certificate"]("ann")
        assert names["User"].get_by_id("ann", use_cache=False).points == 50
        assert names["VideoLog"].query().count() == 1


def test_it_names_the_two_commands() -> None:
    assert "make run" in PAGE.text
    assert "make test" in PAGE.text


def test_the_lab_prints_such_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the figures of the page; tests/system/test_lab.py tests the measurements."""
    rows = [re.findall(r"[\d.,]+$|[\d.,]+(?=  )", each) for each in LAB.splitlines()[3:]]
    runs = [
        {
            key: float(cell.replace(",", ""))
            for (_, key, _), cell in zip(command._ROWS, column, strict=True)
        }
        for column in zip(*rows, strict=True)
    ]
    monkeypatch.setattr(command, "_run", lambda _plan, _options: {"outcome": runs.pop(0)})
    assert "`.venv/bin/python -m sample_app lab`" in BENCHMARKS.text
    monkeypatch.setattr(sys, "argv", ["sample_app", "lab"])
    assert main() == 0
    assert capsys.readouterr().out == LAB
