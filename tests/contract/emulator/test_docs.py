"""The page docs/emulator.md: its examples and commands work as described."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from typing import Any
from unittest import mock

import pytest
from google.cloud import ndb

import emulator
from sample_app.stack import ports
from tests.contract.emulator.process import EmulatorProcess
from tests.documents import Block, Page
from userlock.ndb import policies

PAGE = Page("docs/emulator.md")
START = PAGE.take("sh", "emulator start")
IN_A_TEST = PAGE.take("python", "emulator.start()")
FIXTURE = PAGE.take("python", "datastore_emulator")
LOOKUP = PAGE.take("sh", ":lookup")
FAULTS = PAGE.take("python", "faults.abort")
HOLD = PAGE.take("python", "faults.hold")
FAULTS_OVER_HTTP = PAGE.take("sh", "/faults")


def test_start() -> None:
    command, _, prints = START.text.strip().partition("# prints: ")
    program, *arguments = shlex.split(command)
    assert (program, arguments[:2]) == ("python", ["-m", "emulator"])
    assert arguments[-2:] == ["--port", "8081"]
    port = ports.any_free()
    with EmulatorProcess(*arguments[2:-2], port=port) as process:
        assert process.first_line == prints.replace("8081", str(port))


def test_in_the_same_process() -> None:
    with mock.patch.dict(os.environ):
        names = IN_A_TEST.run({"emulator": emulator, "ndb": ndb, "os": os})
        assert names["client"].host == names["datastore"].host


def test_the_fixture(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATASTORE_EMULATOR_HOST", raising=False)
    test, options = FIXTURE.text.split("\n\n\n")
    pytester.makeconftest(f"import pytest\n\n{options}")
    pytester.makepyfile(
        f"from google.cloud import datastore\n\n{test}\n"
        "    client.put(datastore.Entity(client.key('K', 'a')))\n"
        "    assert datastore_emulator.host in client.base_url\n"
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def shell(block: Block, server: emulator.Emulator) -> list[dict[str, Any]]:
    """Return the response to each line of the block."""
    lines = block.text.replace("\\\n", "").splitlines()
    return [
        json.loads(
            subprocess.check_output(["sh", "-c", line], env={**os.environ, **server.env}, text=True)
        )
        for line in lines
    ]


def test_lookup_over_http(server: emulator.Emulator) -> None:
    ((missing,),) = (answer["missing"] for answer in shell(LOOKUP, server))
    assert missing["entity"]["key"]["path"] == [{"kind": "Task", "name": "a"}]


def test_faults_over_http() -> None:
    with emulator.start() as server:  # a new one, whose first fault has the number 1
        planted, listed, removed = shell(FAULTS_OVER_HTTP, server)
        assert (planted["fault"], planted["count"], planted["kind"]) == ("abort", 2, "Learner")
        assert listed == {"faults": [planted]}
        assert removed == planted
        assert server.faults.abort().hits == 0


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Provide the page's model: ndb's one class of this kind in the process, during a test."""
    monkeypatch.setattr(ndb.Model, "_kind_map", {})
    monkeypatch.delitem(policies._classes, "Learner", raising=False)
    return type("Learner", (ndb.Model,), {"points": ndb.IntegerProperty(default=0)})


def test_faults(server: emulator.Emulator, learner: Any) -> None:
    FAULTS.run({"datastore": server})
    with ndb.Client().context():
        learner(id="ann").put()  # they leave nothing


def test_hold(server: emulator.Emulator, learner: Any) -> None:
    client = ndb.Client()

    def put(points: int) -> None:
        with client.context():
            learner(id="ann", points=points).put()

    def put_the_same() -> None:
        put(2)

    thread = threading.Thread(target=put, args=(1,))
    HOLD.run({"datastore": server, "thread": thread, "put_the_same": put_the_same})
    with client.context():
        assert learner.get_by_id("ann").points == 1
