"""kill -9 under commit load: what was acknowledged is there, and no commit by half."""

from __future__ import annotations

import random
import signal
import threading
from pathlib import Path

import grpc

from emulator.datastore.protos import (
    CommitRequest,
    Mutation,
    QueryResultBatch,
    RunQueryRequest,
)
from tests.contract.emulator.conftest import Stub
from tests.contract.emulator.process import EmulatorProcess
from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.subject import query, where

CLIENTS = 4
# Each commit writes this many entities, which stand or fall together.
GROUP = 3


class Load:
    """Clients that commit groups of entities until the server is gone."""

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
        """Wait for the clients to notice the end; returns the next unused number."""
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
            # Killed. Whether this last commit landed is not known.
            return
        finally:
            stub.close()


def names(stub: Stub, *, by_index: bool) -> list[str]:
    """The names of all entities, through the kind or through the property's index."""
    message = query(orders=("number",)) if by_index else query()
    message.projection.add().property.name = "__key__"
    found: list[str] = []
    while True:
        batch = stub.call("RunQuery", RunQueryRequest(project_id=PROJECT, query=message)).batch
        found += [result.entity.key.path[0].name for result in batch.entity_results]
        if batch.more_results != QueryResultBatch.NOT_FINISHED:
            return found
        message.start_cursor = batch.end_cursor


def test_kill_minus_nine_loses_nothing_acknowledged(tmp_path: Path) -> None:
    moments = random.Random(2)
    acknowledged: set[int] = set()
    number = 0
    for _ in range(4):
        with EmulatorProcess("--data-dir", str(tmp_path)) as process:
            load = Load(process.host, number)
            load.wait_for(moments.randrange(1, 60))
            process.stop(signal.SIGKILL)
            number = load.join()
        acknowledged |= load.acknowledged
        with EmulatorProcess("--data-dir", str(tmp_path)) as process:
            stub = Stub(process.host)
            found = names(stub, by_index=False)
            assert sorted(names(stub, by_index=True)) == sorted(found)
            hot = query("Hot", filters=where(("number", ">=", 0)))
            request = RunQueryRequest(project_id=PROJECT, query=hot)
            assert len(stub.call("RunQuery", request).batch.entity_results) == 1
            stub.close()
        groups: dict[int, int] = {}
        for name in found:
            group = int(name.partition("-")[0])
            groups[group] = groups.get(group, 0) + 1
        assert set(groups.values()) == {GROUP}, "a commit is there by half"
        assert acknowledged <= set(groups), "an acknowledged commit is gone"
