"""Many clients on one counter, in each concurrency mode, over the wire."""

from __future__ import annotations

import threading
import time

import grpc
import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.unit.emulator.builders import PROJECT, entity, key
from tests.waiting import wait_until
from userlock_emulator.cli import _parser
from userlock_emulator.datastore.protos import (
    BeginTransactionRequest,
    CommitRequest,
    LookupRequest,
    Mutation,
    RollbackRequest,
)
from userlock_emulator.datastore.server import CONCURRENCY_MODES

KEY = key("Counter", 1)
CLIENTS = 50


def increment(stub: Stub) -> int:
    """Run one transactional increment; return how often it was aborted."""
    aborted = 0
    while True:
        begin = BeginTransactionRequest(project_id=PROJECT)
        transaction = stub.call("BeginTransaction", begin).transaction
        try:
            lookup = LookupRequest(project_id=PROJECT, keys=[KEY])
            lookup.read_options.transaction = transaction
            found = stub.call("Lookup", lookup).found
            n = found[0].entity.properties["n"].integer_value if found else 0
            commit = CommitRequest(
                project_id=PROJECT,
                transaction=transaction,
                mutations=[Mutation(upsert=entity(KEY, n=n + 1))],
            )
            stub.call("Commit", commit)
            return aborted
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.ABORTED:
                raise
            aborted += 1
            stub.call("Rollback", RollbackRequest(project_id=PROJECT, transaction=transaction))


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(CONCURRENCY_MODES))
def test_fifty_clients_increment_one_counter(mode: str) -> None:
    with userlock_emulator.start(concurrency_mode=mode) as server:
        stub = Stub(server.host)
        aborted: list[int] = []
        started = time.monotonic()
        threads = [
            threading.Thread(target=lambda: aborted.append(increment(stub))) for _ in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # No stall: a lock that times out would take twenty seconds.
        assert time.monotonic() - started < 15
        found = stub.call("Lookup", LookupRequest(project_id=PROJECT, keys=[KEY])).found
        assert found[0].entity.properties["n"].integer_value == CLIENTS
        assert len(aborted) == CLIENTS
        assert sum(aborted) > 0, "there was no contention: the test shows nothing"
        stub.close()


def test_the_command_line_offers_exactly_the_modes_there_are() -> None:
    for mode in CONCURRENCY_MODES:
        assert _parser().parse_args(["start", "--concurrency-mode", mode]).concurrency_mode == mode
    with pytest.raises(SystemExit):
        _parser().parse_args(["start", "--concurrency-mode", "other"])


def test_stopping_does_not_wait_for_locks() -> None:
    server = userlock_emulator.start(concurrency_mode="pessimistic")
    stub = Stub(server.host)
    begin = BeginTransactionRequest(project_id=PROJECT)
    lookup = LookupRequest(project_id=PROJECT, keys=[KEY])
    lookup.read_options.transaction = stub.call("BeginTransaction", begin).transaction
    stub.call("Lookup", lookup)
    put = CommitRequest(
        project_id=PROJECT,
        mode=CommitRequest.NON_TRANSACTIONAL,
        mutations=[Mutation(upsert=entity(KEY, n=1))],
    )
    outcome: list[grpc.StatusCode] = []

    def wait_for_the_reader() -> None:
        try:
            stub.call("Commit", put)
        except grpc.RpcError as error:
            outcome.append(error.code())

    waiting = threading.Thread(target=wait_for_the_reader)
    waiting.start()
    wait_until(lambda: server.waiting == 1)
    started = time.monotonic()
    server.stop(grace_seconds=0.1)
    assert time.monotonic() - started < 10
    waiting.join()
    assert outcome in ([grpc.StatusCode.CANCELLED], [grpc.StatusCode.UNAVAILABLE])
    stub.close()
