"""Processes killed at each point of a paid request: one charge, one ride, one answer."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulator.datastore.server import CONCURRENCY_MODES
from tests.contract.emulator.process import EmulatorProcess
from tests.faults.crashing import App
from tests.faults.idempotency.program import POINTS
from tests.servers import Memcached


@pytest.fixture(scope="module", params=CONCURRENCY_MODES)
def datastore(request: pytest.FixtureRequest) -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--concurrency-mode", request.param) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("resumed_by", ["client", "complete"])
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_each_point(
    tmp_path: Path, datastore: EmulatorProcess, memcached: Memcached, point: str, resumed_by: str
) -> None:
    """Sent again, or completed by the server; with the lock, and every other one without it."""
    locked = (list(POINTS).index(point) + (resumed_by == "client")) % 2 == 0
    lock = memcached.url(uuid.uuid4().hex) if locked else "none"
    app = App("tests.faults.idempotency.program", tmp_path, datastore, lock=lock, point=point)
    killed = app.run("client", point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    stored = point != "before the key is stored"
    assert len(app.said("outcome")["requests"]) == stored, "an unfinished one is not removed"
    if resumed_by == "complete":
        finished = point in ("the answer is stored, not sent", "refused and recorded")
        assert app.said("complete") == (stored and not finished)
    first, again = app.said("client"), app.said("client")
    assert first == again
    outcome = app.said("outcome")
    if "refused" in point:
        assert first["status"] == 402
        assert (outcome["charges"], outcome["rides"]) == ([], [None])
    else:
        assert first["to"] == "home"
        assert outcome["charges"] == outcome["rides"] == [first["charge"]]
    assert outcome["requests"] == [True]
