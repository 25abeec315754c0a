"""Processes killed at each point of a job's way: none is lost, early, or written twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emulator.datastore.server import CONCURRENCY_MODES
from tests.contract.emulator.process import ROOT, EmulatorProcess
from tests.faults.outbox.program import POINTS
from tests.servers import Memcached

#: The roles before each one that is killed, so that it has something to do.
BEFORE = {"stage": [], "run": ["stage"], "relay": ["stage"], "redrive": ["stage", "run"]}
FAILING = ("the failure", "moved to", "redrive")


@pytest.fixture(scope="module", params=CONCURRENCY_MODES)
def datastore(request: pytest.FixtureRequest) -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--concurrency-mode", request.param) as process:
        yield process


class App:
    """Processes of the program, with what they share."""

    def __init__(
        self, folder: Path, datastore: EmulatorProcess, *, lock: str, **facts: bool
    ) -> None:
        self._folder = folder
        project = f"p-{uuid.uuid4().hex[:12]}"
        self._environ = {
            **os.environ,
            "DATASTORE_EMULATOR_HOST": datastore.host,
            "GOOGLE_CLOUD_PROJECT": project,
            "DATASTORE_DATASET": project,
        }
        (folder / "facts").write_text(json.dumps({"lock": lock, **facts}))

    def run(self, role: str, point: str = "") -> subprocess.CompletedProcess[str]:
        module = "tests.faults.outbox.program"
        return subprocess.run(
            [sys.executable, "-m", module, str(self._folder), role, *([point] if point else [])],
            cwd=ROOT,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=200,  # a killed transaction keeps its locks for a minute
            check=False,
        )

    def settled(self) -> dict[str, Any]:
        done = self.run("settle")
        assert done.returncode == 0, done.stderr
        outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return outcome


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("transactional", [True, False])
def test_killed_at_each_point(
    tmp_path: Path,
    datastore: EmulatorProcess,
    memcached: Memcached,
    point: str,
    transactional: bool,
) -> None:
    """With the lock, and every other one without it."""
    locked = (list(POINTS).index(point) + transactional) % 2 == 0
    failing = any(word in point for word in FAILING)
    lock = memcached.url(uuid.uuid4().hex) if locked else "none"
    app = App(tmp_path, datastore, lock=lock, failing=failing, transactional=transactional)
    role = point.partition(":")[0]
    for each in BEFORE[role]:
        assert app.run(each).returncode == 0
    killed = app.run(role, point)
    if point in ("run: after the job", "run: removed") and transactional:
        assert killed.returncode == 0, "there is no such point: it is one commit"
    else:
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    outcome = app.settled()
    assert outcome["left"] == 0
    if point == "stage: before the commit":
        assert outcome == {"committed": False, "written": 0, "runs": 0, "left": 0}
        return
    assert outcome["committed"]
    assert outcome["runs"] >= 1
    assert outcome["written"] == 1 if transactional else outcome["written"] >= 1
