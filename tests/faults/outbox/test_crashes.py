"""Processes killed on a job's way, with what they leave behind: no job is lost, early, or written
twice."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.emulator.process import EmulatorProcess
from tests.faults.crashing import App
from tests.faults.outbox.program import POINTS
from tests.servers import Memcached

#: The roles before each one that is killed, so that it has something to do.
BEFORE = {"stage": [], "run": ["stage"], "relay": ["stage"], "redrive": ["stage", "run"]}
FAILING = ("the failure", "redrive")


# In pessimistic mode the locks of a killed transaction last for a minute.
_MODES = ["optimistic", pytest.param("pessimistic", marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=_MODES)
def datastore(request: pytest.FixtureRequest) -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--concurrency-mode", request.param) as process:
        yield process


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
    app = App(
        "tests.faults.outbox.program",
        tmp_path,
        datastore,
        lock=lock,
        failing=failing,
        transactional=transactional,
    )
    role = point.partition(":")[0]
    for each in BEFORE[role]:
        assert app.run(each).returncode == 0
    killed = app.run(role, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    outcome = app.said("settle")
    assert outcome["left"] == 0
    if point == "stage: before the commit":
        assert outcome == {"committed": False, "written": 0, "runs": 0, "left": 0}
        return
    assert outcome["committed"]
    assert outcome["runs"] >= 1
    assert outcome["written"] == 1 if transactional else outcome["written"] >= 1
