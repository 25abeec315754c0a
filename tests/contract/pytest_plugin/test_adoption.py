"""Test docs/adoption.md and docs/testing.md: their files, commands and output."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.cloud import ndb

import userlock
from tests.documents import Page
from userlock.cli import main
from userlock.stores import MemoryStore

PAGE = Page("docs/adoption.md")
TESTING = Page("docs/testing.md")
LOG_ONLY = PAGE.take("python", "UserLock(app")
HELPER = PAGE.take("python", "_userlock_helper")
FILES = {
    block.text.split("\n", 1)[0].removeprefix("# "): block.text
    for block in (*PAGE.take_all("python"), *TESTING.take_all("python"))
}
BASELINE = PAGE.take("console", "--userlock-baseline-write")
HELD = PAGE.take("console", "--userlock-baseline=")
IN_EVERY_RUN = PAGE.take("toml", "userlock_baseline =")
FROM_THE_LOG = PAGE.take("console", "gcloud")
SHARDS = PAGE.take("console", "shard1")
TEST_CODE = TESTING.take("toml", "userlock_test_code")


@pytest.fixture
def project(
    pytester: pytest.Pytester, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
) -> Path:
    # ndb knows one class per kind in a process; the page's are its own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    pytester.makeini("[pytest]\npythonpath = .\n")
    for name, source in FILES.items():
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return pytester.path


def test_the_afternoon(project: Path, pytester: pytest.Pytester) -> None:
    assert set(FILES) == {
        "app/models.py",
        "app/points.py",
        "app/web.py",
        "tests/conftest.py",
        "tests/test_points.py",
        "tests/test_web.py",
    }
    forgotten = pytester.runpytest_inprocess()
    forgotten.assert_outcomes(passed=7, failed=1)

    ((line, shown),) = BASELINE.commands()
    written = pytester.runpytest_inprocess(*shlex.split(line)[1:])
    written.assert_outcomes(passed=8)
    assert shown in written.stdout.str()

    ((line, _),) = HELD.commands()
    held = pytester.runpytest_inprocess(*shlex.split(line)[1:])
    held.assert_outcomes(passed=8)

    points = project / "app" / "points.py"
    points.write_text(points.read_text().replace("    with userlock", "    if True or userlock"))
    new = pytester.runpytest_inprocess(*shlex.split(line)[1:])
    new.stdout.fnmatch_lines(["new    app/points.py::spend PutWithoutLock Learner"])


def test_shards(
    project: Path, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "userlock-baseline.txt").write_text("")
    (first, _), (check, _) = SHARDS.commands()
    second = first.replace("shard1", "shard2")
    pytester.runpytest_inprocess(*shlex.split(first)[1:], "-k", "finish")
    pytester.runpytest_inprocess(*shlex.split(second)[1:], "-k", "not finish")
    assert main(shlex.split(check)[1:]) == 1
    assert "new    app/points.py::finish_exercise PutWithoutLock Learner" in capsys.readouterr().out


def test_the_configuration(project: Path, pytester: pytest.Pytester) -> None:
    settings = [IN_EVERY_RUN.text, TEST_CODE.text, 'pythonpath = ["."]']
    (project / "tox.ini").unlink()
    (project / "pyproject.toml").write_text("\n".join(settings))
    (project / "userlock-baseline.txt").write_text(
        "app/points.py::finish_exercise PutWithoutLock Learner\n"
    )
    pytester.runpytest_inprocess("--strict-config").assert_outcomes(passed=8)


#: An app in production that only logs, as lines of JSON.
PRODUCTION = (
    """
import json
import logging

import flask
from google.cloud import ndb

import userlock
from app import models, points
from userlock.contrib.flask import UserLock
from userlock.stores import MemoryStore


class AsJson(logging.Handler):
    def emit(self, record):
        facts = {"message": record.getMessage(), "userlock_site": record.userlock_site}
        print(json.dumps({"jsonPayload": facts}))


logging.getLogger("userlock").addHandler(AsJson())
app = flask.Flask("production")
service = userlock.LockService(MemoryStore())
"""
    + LOG_ONLY.text
    + """

@app.post("/exercises/<learner_id>")
def finish(learner_id):
    models.Learner(id=learner_id).put(unguarded="not what this is about")
    points.finish_exercise(learner_id)
    return {"points": models.Learner.get_by_id(learner_id).points}


assert app.test_client().post("/exercises/ann").get_json() == {"points": 5}
"""
)


def test_the_log_of_production(project: Path) -> None:
    (project / "production.py").write_text(PRODUCTION)
    logged = subprocess.run(
        [sys.executable, "production.py"], cwd=project, capture_output=True, text=True, check=False
    )
    assert logged.returncode == 0, logged.stderr
    (project / "log.jsonl").write_text(logged.stdout)
    commands = project / "bin"
    commands.mkdir()
    for name, does in {
        "gcloud": "cat log.jsonl",
        "userlock": f'exec {sys.executable} -m userlock "$@"',
    }.items():
        (commands / name).write_text(f"#!/bin/sh\n{does}\n")
        (commands / name).chmod(0o755)
    (project / "userlock-baseline.txt").write_text("")
    ((line, _),) = FROM_THE_LOG.commands()
    path = f"{commands}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=project, env={**os.environ, "PATH": path}, check=False
    )
    assert done.returncode == 0
    site = "app/points.py::finish_exercise PutWithoutLock Learner"
    assert site in (project / "userlock-baseline.txt").read_text().splitlines()


def test_a_helper_is_not_to_blame(ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    # ndb knows one class per kind in a process; these are this test's own.
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    models: dict[str, Any] = {"__name__": "models"}
    exec(FILES["app/models.py"], models)  # noqa: S102 (our own page)
    helper: dict[str, Any] = {"__name__": "helper"}
    code = f"{HELPER.text}\ndef save(entity):\n    entity.put()\n"
    exec(compile(code, "helper_of_the_page.py", "exec"), helper)  # noqa: S102
    service = userlock.LockService(MemoryStore())
    with (
        ndb_client.context(),
        userlock.scope(service),
        pytest.raises(userlock.CreatedWithoutLock, match="in test_a_helper_is_not_to_blame"),
    ):
        helper["save"](models["Learner"](id="ann"))


def test_it_is_linked() -> None:
    assert "(docs/adoption.md)" in Page("README.md").text
