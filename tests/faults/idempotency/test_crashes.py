"""Processes killed at each point of a paid request: one charge, one ride, one answer."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.emulator.process import EmulatorProcess
from tests.faults.crashing import App
from tests.faults.idempotency.program import BEGUN_NOT, FINISHED, POINTS, REFUSED
from tests.servers import Memcached

# In pessimistic mode the locks of a killed transaction last for a minute.
_MODES = ["optimistic", pytest.param("pessimistic", marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=_MODES)
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
    stored = point not in BEGUN_NOT
    assert len(app.said("outcome")["requests"]) == stored, "an unfinished one is not removed"
    if resumed_by == "complete":
        assert app.said("complete") == (stored and point not in FINISHED)
    first, again = app.said("client"), app.said("client")
    assert first == again
    outcome = app.said("outcome")
    assert outcome["jobs"] == (point not in REFUSED)
    if point in REFUSED:
        assert first["status"] == 402
        assert (outcome["charges"], outcome["rides"]) == ([], [None])
    else:
        assert first["to"] == "home"
        assert outcome["charges"] == outcome["rides"] == [first["charge"]]
    assert outcome["requests"] == [True]


# --- who acts at the same time --------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paused", "other", "ends"),
    [
        ("client", "client", "goes on"),
        ("client", "complete", "is killed"),
        ("client", "reap", "goes on"),
        ("complete", "client", "goes on"),
        ("complete", "complete", "goes on"),
        ("complete", "reap", "is killed"),
    ],
)
def test_paused_in_the_call_until_its_lease_has_ended(
    tmp_path: Path,
    datastore: EmulatorProcess,
    memcached: Memcached,
    paused: str,
    other: str,
    ends: str,
) -> None:
    """A client or the completer; meanwhile another one serves the request, or reaps."""
    point = "called, not recorded"
    app = App(
        "tests.faults.idempotency.program",
        tmp_path,
        datastore,
        lock=memcached.url(uuid.uuid4().hex),
        point=point,
    )
    if paused == "complete":
        assert app.run("client", "fails: asked, not called").returncode == 1
    with app.started(paused, f"pauses: {point}") as process:
        app.wait_for_the_pause(process)
        if other == "reap":
            assert app.said("reap") == 0
        elif other == "complete":
            assert app.said("complete") == 1
        else:
            app.said("client")
        process.send_signal(signal.SIGKILL if ends == "is killed" else signal.SIGCONT)
        process.wait(200)
    first, again = app.said("client"), app.said("client")
    assert first == again
    outcome = app.said("outcome")
    assert outcome["charges"] == outcome["rides"] == [first["charge"]]
    assert outcome["requests"] == [True]
    assert outcome["jobs"] == 1
