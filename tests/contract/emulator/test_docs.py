"""The page emulator/README.md: its examples, commands and options work as described."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest
import yaml
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import Request
from google.cloud import datastore, ndb
from google.cloud.tasks_v2 import CloudTasksClient
from google.cloud.tasks_v2.services.cloud_tasks.transports import (
    CloudTasksGrpcTransport,
    CloudTasksRestTransport,
)
from google.oauth2 import id_token

import userlock_emulator
from sample_app.stack import ports
from tests.contract.emulator.process import EmulatorProcess, refused, run_to_end
from tests.contract.emulator.tasks.conftest import QUEUE, grpc_client, started
from tests.contract.emulator.tasks.target import Target
from tests.documents import Block, Page
from userlock.ndb import policies
from userlock_emulator import tasks
from userlock_emulator.cli import _parser
from userlock_emulator.google_options import _REFUSED, spelled

PAGE = Page("emulator/README.md")
START = PAGE.take("sh", "emulator start")
IN_A_TEST = PAGE.take("python", "userlock_emulator.start()")
FIXTURES = PAGE.take("python", "datastore_emulator")
WORKFLOW = PAGE.take("yaml", "GITHUB_ENV")
LOOKUP = PAGE.take("sh", ":lookup")
FAULTS = PAGE.take("python", "faults.abort")
HOLD = PAGE.take("python", "faults.hold")
FAULTS_OVER_HTTP = PAGE.take("sh", "/faults")
TASKS = PAGE.take("python", "tasks.start(queues")
TASKS_BY_HAND = PAGE.take("python", "tasks.ManualClock")
TOKENS = PAGE.take("python", "id_token.verify_token")
GOOGLES = PAGE.take("sh", "--host-port=localhost")
TASK_FAULTS = PAGE.take("python", "cloud_tasks.faults")


def test_start() -> None:
    command, _, prints = START.text.strip().partition("# prints: ")
    program, *arguments = shlex.split(command)
    assert program == "userlock-emulator"
    assert arguments[-2:] == ["--port", "8081"]
    assert Path(sys.executable).with_name(program).exists()
    port = ports.any_free()
    with EmulatorProcess(*arguments[:-2], port=port) as process:
        assert process.first_line == prints.replace("8081", str(port))


def test_in_the_same_process() -> None:
    with mock.patch.dict(os.environ):
        names = IN_A_TEST.run({"userlock_emulator": userlock_emulator, "ndb": ndb, "os": os})
        assert names["client"].host == names["datastore"].host


def test_the_fixtures(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATASTORE_EMULATOR_HOST", raising=False)
    imports, *tests, options = FIXTURES.text.split("\n\n\n")
    pytester.makeconftest(f"import pytest\n\n{options}")
    use = "    client.put(datastore.Entity(client.key('K', 'a')))\n"
    use += "    assert len(list(client.query(kind='K').fetch())) == 1\n"
    pytester.makepyfile(
        f"from google.cloud import datastore\n{imports}\n\n"
        + "".join(f"{test}\n{use}\n" for test in tests)
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_the_steps_of_a_workflow(tmp_path: Path) -> None:
    install, start = yaml.safe_load(WORKFLOW.text)["steps"]
    assert install == {"run": "pip install ./emulator"}
    port = str(ports.any_free())
    file = tmp_path / "env"
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (tmp_path / "log").open("w") as log:
        subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", start["run"].replace("8081", port)],
            env={"PATH": programs, "GITHUB_ENV": str(file)},
            stdout=log,
            stderr=log,
            check=True,
            timeout=60,
        )
    variables = dict(line.split("=", 1) for line in file.read_text().splitlines())
    with mock.patch.dict(os.environ, variables):
        assert list(datastore.Client().query(kind="K").fetch()) == []
    shutdown = f"curl --silent --fail -X POST {variables['DATASTORE_HOST']}/shutdown"
    subprocess.run(shutdown.split(), check=True)


def shell(block: Block, server: userlock_emulator.Emulator) -> list[dict[str, Any]]:
    lines = block.text.replace("\\\n", "").splitlines()
    return [
        json.loads(
            subprocess.check_output(["sh", "-c", line], env={**os.environ, **server.env}, text=True)
        )
        for line in lines
    ]


def test_lookup_over_http(server: userlock_emulator.Emulator) -> None:
    ((missing,),) = (answer["missing"] for answer in shell(LOOKUP, server))
    assert missing["entity"]["key"]["path"] == [{"kind": "Task", "name": "a"}]


def test_faults_over_http() -> None:
    with userlock_emulator.start() as server:  # a new one, whose first fault has the number 1
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


def test_faults(server: userlock_emulator.Emulator, learner: Any) -> None:
    FAULTS.run({"datastore": server})
    with ndb.Client().context():
        learner(id="ann").put()  # they leave nothing


def test_hold(server: userlock_emulator.Emulator, learner: Any) -> None:
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


def test_clients_of_cloud_tasks() -> None:
    found: list[str] = []

    class Listing(CloudTasksClient):
        """The official client; each is used as soon as it is made."""

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            found.append(self.get_queue(name=QUEUE).name)
            self.transport.close()

    TASKS.run(
        {
            "AnonymousCredentials": AnonymousCredentials,
            "CloudTasksClient": Listing,
            "CloudTasksGrpcTransport": CloudTasksGrpcTransport,
            "CloudTasksRestTransport": CloudTasksRestTransport,
            "grpc": grpc,
        }
    )
    assert found == [QUEUE, QUEUE]


def test_a_clock_that_is_moved_by_hand() -> None:
    statuses = iter([500, 200])
    with Target(lambda _: next(statuses)) as target:

        def send_a_task(host: str) -> None:
            client = grpc_client(host)
            client.create_queue(parent=QUEUE.partition("/queues")[0], queue={"name": QUEUE})
            client.create_task(parent=QUEUE, task={"http_request": {"url": target.url}})
            client.transport.close()

        TASKS_BY_HAND.run({"tasks": tasks, "send_a_task": send_a_task})
        assert len(target.received) == 2


def test_tokens() -> None:
    with Target() as target, started(target) as bench:
        cloud_tasks = bench.server
        wanted = {"service_account_email": "robot@p.example", "audience": "me"}
        bench.create(http_request={"oidc_token": wanted})
        cloud_tasks.wait_empty()
        token = target.received[0].headers["Authorization"].split()[1]
        names: dict[str, Any] = {"token": token, "audience": "me", "cloud_tasks": cloud_tasks}
        found = TOKENS.run({**names, "id_token": id_token, "Request": Request})
        assert found["claims"]["email"] == "robot@p.example"


def test_faults_of_tasks() -> None:
    with tasks.start() as cloud_tasks:
        TASK_FAULTS.run({"cloud_tasks": cloud_tasks})
        planted = [fault.rule.name for fault in cloud_tasks.faults.planted]
    written = [line.split("faults.")[1].split("(")[0] for line in TASK_FAULTS.text.splitlines()]
    assert planted == written


def test_the_commands(tmp_path: Path) -> None:
    start, env = GOOGLES.text.splitlines()
    port = ports.any_free()
    program, *arguments = start.replace(":8081", f":{port}").split()
    assert program == "userlock-emulator"
    folder = str(tmp_path / "data")
    arguments = [each.replace(".datastore", folder) for each in arguments]
    with EmulatorProcess(*arguments, port=port) as process:
        assert process.host.endswith(f":{port}")
        found = re.search(r"\(userlock-emulator (.*)\)", env)
        assert found is not None
        printed = run_to_end(*found[1].replace(".datastore", folder).split(), "--shell", "bash")
        script = f"{printed.stdout}\necho $DATASTORE_EMULATOR_HOST $DATASTORE_PROJECT_ID"
        seen = subprocess.check_output(["bash", "-c", script], text=True)
        assert seen == f"{process.host} my-project\n"


def test_each_option_of_googles_is_in_the_help() -> None:
    """Those that are refused say what to do instead."""
    subparsers: Any = _parser()._subparsers
    start: argparse.ArgumentParser = subparsers._group_actions[0].choices["start"]
    text = re.sub(r"\s+", " ", start.format_help())
    for action in start._action_groups[-1]._group_actions:
        if action.help != argparse.SUPPRESS:
            assert all(option in text for option in action.option_strings)
    for option, instead in _REFUSED.items():
        refused(run_to_end("start", option), option, instead)


@pytest.mark.parametrize("option", ["--store_on_disk", "--enable_entity_groups"])
def test_the_spelling_with_underscores(option: str) -> None:
    hyphens = option.replace("_", "-")
    assert list(spelled([f"{option}=True"])) == [hyphens]
    assert list(spelled([f"{option}=false"])) == [hyphens.replace("--", "--no-", 1)]
    assert list(spelled([f"{option}=maybe", "a_b", "--data_dir=a_b"])) == [
        f"{hyphens}=maybe", "a_b", "--data-dir=a_b",
    ]  # fmt: skip
