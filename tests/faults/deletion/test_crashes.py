"""A worker that is killed again and again while it deletes a tree: nothing is left at the end."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.emulator.process import EmulatorProcess
from tests.faults.crashing import App
from tests.faults.outbox.program import lines
from tests.servers import Memcached
from tests.waiting import wait_until

NOTHING = {
    "CrashedLibrary": 0,
    "CrashedShelf": 0,
    "CrashedBook": 0,
    "CrashedLoan": 0,
    "files": 0,
    "jobs": 0,
    "ended": True,
}


@pytest.fixture(scope="module")
def datastore() -> Iterator[EmulatorProcess]:
    with EmulatorProcess("--concurrency-mode", "optimistic") as process:
        yield process


class Trial:
    """A tree that is deleted by workers that are killed."""

    def __init__(
        self, folder: Path, datastore: EmulatorProcess, lock: str, count: int, **facts: object
    ) -> None:
        self.folder = folder
        self.app = App(
            "tests.faults.deletion.program", folder, datastore, lock=lock, count=count, **facts
        )
        for role in ("fill", "delete"):
            done = self.app.run(role)
            assert done.returncode == 0, done.stderr

    def batches(self) -> list[tuple[float, int]]:
        """Return the seconds of each batch so far, and the memory after it in KiB."""
        found = [line.split() for line in lines(self.folder / "batches")]
        return [(float(each[0]), int(each[1])) for each in found if len(each) == 2]

    def kill_after(self, batches: int) -> None:
        """Run a worker, and kill it after so many batches."""
        before = len(self.batches())
        with self.app.started("work", "") as worker:
            wait_until(
                lambda: worker.poll() is not None or len(self.batches()) >= before + batches,
                seconds=120,
            )
            assert worker.poll() is None, "it has ended before it could be killed"

    def finish(self) -> None:
        done = self.app.run("work")
        assert done.returncode == 0, done.stderr

    def left(self) -> dict[str, object]:
        found: dict[str, object] = self.app.said("count")
        return found


@pytest.mark.parametrize("locked", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_killed_several_times(
    tmp_path: Path, datastore: EmulatorProcess, memcached: Memcached, locked: bool
) -> None:
    lock = memcached.url(uuid.uuid4().hex) if locked else "none"
    trial = Trial(tmp_path, datastore, lock, 1_500)
    for batches in (1, 2, 1, 3):
        trial.kill_after(batches)
    assert trial.left() != NOTHING
    trial.finish()
    assert trial.left() == NOTHING


def test_top_down_something_stays(tmp_path: Path, datastore: EmulatorProcess) -> None:
    """The negative control."""
    trial = Trial(tmp_path, datastore, "none", 1_500, top_down=True)
    trial.kill_after(2)
    trial.finish()
    left = trial.left()
    assert left["ended"]
    assert left["CrashedLoan"] != 0


@pytest.mark.long
def test_a_hundred_thousand(
    tmp_path: Path, datastore: EmulatorProcess, memcached: Memcached
) -> None:
    """Killed twenty times; then the waits of interactive requests beside it are measured."""
    trial = Trial(tmp_path, datastore, memcached.url(uuid.uuid4().hex), 100_000)
    for _ in range(20):
        trial.kill_after(25)
    begun = len(trial.batches())
    assert begun >= 20 * 25
    with trial.app.started("work", "") as worker:
        wait_until(lambda: len(trial.batches()) > begun + 2, seconds=60)
        with trial.app.started("visit", "") as visitor:
            worker.wait(600)
            (tmp_path / "stop").touch()
            visitor.wait(60)
    assert trial.left() == NOTHING
    last = trial.batches()[begun:]
    assert len(last) > 200
    memory = [kib for _, kib in last]
    assert memory[-1] - memory[20] < 20_000, "KiB more than at the beginning"
    waits = sorted(json.loads((tmp_path / "waits").read_text()))
    assert len(waits) > 100
    slowest = sorted(seconds for seconds, _ in last)[int(len(last) * 0.99)]
    p99 = waits[int(len(waits) * 0.99)]
    print(f"{len(waits)} waits: p99 {p99 * 1000:.0f} ms; a batch: p99 {slowest * 1000:.0f} ms")
    assert p99 <= slowest + 0.05
