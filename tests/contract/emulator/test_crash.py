"""A kill -9 under load: each acknowledged commit is stored, and none partly."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import EmulatorProcess
from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.subject import query
from userlock_emulator.datastore.protos import CommitRequest, Mutation, QueryResultBatch

CLIENTS = 4
MOMENTS = 24
SIDE_BY_SIDE = 4
# The number of entities of each commit, which are stored all or none.
GROUP = 3


class Load:
    """Clients that commit groups of entities until the server dies."""

    def __init__(self, host: str, first_number: int) -> None:
        self._host = host
        self._number = first_number
        self._lock = threading.Lock()
        self._progress = threading.Condition(self._lock)
        self.acknowledged: set[int] = set()
        self._threads = [threading.Thread(target=self._work) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, count: int) -> None:
        with self._progress:
            assert self._progress.wait_for(lambda: len(self.acknowledged) >= count, 20)

    def join(self) -> int:
        """Wait until the clients notice the end; return the next unused number."""
        for thread in self._threads:
            thread.join(20)
        return self._number

    def _work(self) -> None:
        stub = Stub(self._host)
        try:
            while True:
                with self._lock:
                    number, self._number = self._number, self._number + 1
                request = CommitRequest(project_id=PROJECT)
                request.single_use_transaction.read_write.SetInParent()
                request.mutations.extend(
                    Mutation(upsert=entity(key("K", f"{number}-{part}"), number=number))
                    for part in range(GROUP)
                )
                # Overwritten by every commit, so that there is history to lose.
                request.mutations.append(Mutation(upsert=entity(key("Hot", 1), number=number)))
                stub.call("Commit", request, timeout_seconds=5)
                with self._progress:
                    self.acknowledged.add(number)
                    self._progress.notify_all()
        except grpc.RpcError:
            # Killed. It is unknown whether this last commit landed.
            return
        finally:
            stub.close()


def numbers(stub: Stub, first: int, *, by_index: bool) -> Counter[int]:
    """Count the entities of each group from `first` on, by the kind or by the index."""
    message = query(projection=("__key__",))
    if by_index:
        above = (("number", ">=", first),)
        message = query("K", above, ("number",), projection=("__key__",))
    found: Counter[int] = Counter()
    while True:
        batch = stub.run(message)
        names = [result.entity.key.path[0].name for result in batch.entity_results]
        found.update(int(name.partition("-")[0]) for name in names)
        if batch.more_results != QueryResultBatch.NOT_FINISHED:
            return found
        message.start_cursor = batch.end_cursor


def check(found: Counter[int], acknowledged: set[int]) -> None:
    assert set(found.values()) <= {GROUP}, "a commit is there by half"
    assert acknowledged <= set(found), "an acknowledged commit is gone"


@pytest.mark.slow
def test_kill_minus_nine_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Several emulators, each with a folder of its own, are killed at the same time."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        killed = [
            pool.submit(kill_again_and_again, tmp_path / str(seed), seed)
            for seed in range(SIDE_BY_SIDE)
        ]
        for each in killed:
            each.result()


def kill_again_and_again(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    acknowledged: set[int] = set()
    latest: set[int] = set()
    number = first = 0
    for _ in range(MOMENTS // SIDE_BY_SIDE):
        with EmulatorProcess("--data-dir", str(folder)) as process:
            with Stub(process.host) as stub:
                check(numbers(stub, first, by_index=True), latest)
            first = number
            load = Load(process.host, number)
            load.wait_for(chance.randrange(1, 20))
            # At a random time after this commit.
            time.sleep(chance.uniform(0, 0.005))
            process.stop(signal.SIGKILL)
            number = load.join()
        latest = load.acknowledged
        acknowledged |= latest
    with EmulatorProcess("--data-dir", str(folder)) as process, Stub(process.host) as stub:
        found = numbers(stub, 0, by_index=False)
        check(found, acknowledged)
        assert numbers(stub, 0, by_index=True) == found
        hot = query("Hot", (("number", ">=", 0),))
        assert len(stub.identifiers(hot)) == 1
    assert len(acknowledged) >= MOMENTS // SIDE_BY_SIDE
