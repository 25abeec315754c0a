"""The command line finds the objects of an app by its name alone, as docs/cli.md says."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.test_docs import APP

SOURCE = """
import flask
from google.cloud import ndb
import userlock
from userlock.constraints import Quota, Unique
from userlock.contrib.flask import Flows, UserLock
from userlock.outbox import Outbox


class Project(userlock.UserModel):
    _lock_id_from_key = userlock.root_id
    _unique = [Unique("title")]
    title = ndb.StringProperty()


def create_app():
    app = flask.Flask(__name__)
    outbox = Outbox("inline://", client=ndb.Client)
    UserLock(
        app,
        client=ndb.Client,
        service=userlock.LockService.from_url("memory:"),
        outbox=outbox,
    )
    app.flows = Flows(client=ndb.Client)
    app.quota = Quota("projects", outbox, limit=lambda user_id: 3, select=lambda user_id: [])
    return app


app = create_app()
"""
SECOND = """
other_outbox, other_flows = Outbox("inline://", name="other"), Flows()
other_quota = Quota("drafts", other_outbox, limit=lambda user_id: 3, select=lambda user_id: [])
other = UserLock(client=ndb.Client())
"""
#: Commands, with their answers in an empty database.
COMMANDS = {
    "outbox status": "0 due, 0 later, 0 running, 0 blocked, 0 dead",
    "flows list": "no requests",
    "reap": "0 answers removed",
    "unique check": "0 entities, 0 claims, no problems",
    "quota check": "0 owners checked, 0 wrong",
}
#: Runs each in one process of its own, so that only the app's objects are there.
PROGRAM = """
import sys
from userlock.cli import main
for line in sys.argv[1:]:
    print(main(line.split()), flush=True)
"""


def said(folder: Path) -> tuple[list[str], str]:
    """Return what the commands print in that folder, and their errors."""
    name, _, value = shlex.split(APP.text)[1].partition("=")
    environment = {**os.environ, name: value, "USERLOCK_STORE": "memory:"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *COMMANDS],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.splitlines(), done.stderr


@pytest.mark.usefixtures("ndb_client")
def test_an_app_with_one_of_each(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SOURCE)
    out, err = said(tmp_path)
    assert out == [line for answer in COMMANDS.values() for line in (answer, "0")]
    assert err == ""


@pytest.mark.usefixtures("ndb_client")
def test_the_control_an_app_with_two_of_each(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(SOURCE + SECOND)
    out, err = said(tmp_path)
    assert out == ["2"] * len(COMMANDS)
    for noun in ("outbox", "flows", "client", "quota"):
        assert f"has 2 objects that could be its {noun}" in err
        assert f"USERLOCK_{noun.upper()}=main:{noun}" in err
