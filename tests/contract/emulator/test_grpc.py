"""The service on the wire: status codes, texts, sizes, raw messages."""

from __future__ import annotations

import grpc
import pytest

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.unit.emulator.builders import PROJECT, entity, key, value
from tests.unit.emulator.subject import query
from userlock_emulator.datastore.errors import CONTENTION, EXPIRED
from userlock_emulator.datastore.protos import (
    BeginTransactionRequest,
    CommitRequest,
    LookupRequest,
    Message,
    Mutation,
    RollbackRequest,
    RunQueryRequest,
)

KEY = key("K", 1)


def commit(stub: Stub, *mutations: Message, transaction: bytes = b"") -> Message:
    request = CommitRequest(project_id=PROJECT, mutations=mutations)
    if transaction:
        request.transaction = transaction
    else:
        request.mode = CommitRequest.NON_TRANSACTIONAL
    return stub.call("Commit", request)


def lookup(stub: Stub, transaction: bytes = b"") -> Message:
    request = LookupRequest(project_id=PROJECT, keys=[KEY])
    if transaction:
        request.read_options.transaction = transaction
    return stub.call("Lookup", request)


def begin(stub: Stub) -> bytes:
    response = stub.call("BeginTransaction", BeginTransactionRequest(project_id=PROJECT))
    transaction: bytes = response.transaction
    return transaction


def upsert(n: int, **detection: object) -> Message:
    return Mutation(upsert=entity(KEY, n=n), **detection)


def test_base_version_over_the_wire(stub: Stub) -> None:
    version = commit(stub, upsert(1)).mutation_results[0].version
    assert lookup(stub).found[0].version == version > 0
    (won,) = commit(stub, upsert(2, base_version=version)).mutation_results
    assert not won.conflict_detected
    lost, landed = commit(
        stub, upsert(3, base_version=version), Mutation(upsert=entity(key("K", 2), n=1))
    ).mutation_results
    assert (lost.conflict_detected, lost.version) == (True, won.version)
    assert not landed.conflict_detected
    assert lookup(stub).found[0].entity.properties["n"].integer_value == 2


@pytest.mark.parametrize(
    ("mutation", "code", "text"),
    [
        (Mutation(insert=entity(KEY)), grpc.StatusCode.ALREADY_EXISTS, "entity already exists"),
        (Mutation(update=entity(key("K", 9))), grpc.StatusCode.NOT_FOUND, "no entity to update"),
        (Mutation(delete=key("K")), grpc.StatusCode.INVALID_ARGUMENT, "incomplete"),
        (
            upsert(1, base_version=1, conflict_resolution_strategy=Mutation.FAIL),
            grpc.StatusCode.ABORTED,
            "contention",
        ),
    ],
)
def test_errors_have_documented_codes(
    stub: Stub, mutation: Message, code: grpc.StatusCode, text: str
) -> None:
    commit(stub, upsert(1))
    with pytest.raises(grpc.RpcError, match=text) as caught:
        commit(stub, mutation)
    assert caught.value.code() is code


def test_contention_and_what_follows(stub: Stub) -> None:
    commit(stub, upsert(1))
    transaction = begin(stub)
    lookup(stub, transaction)
    commit(stub, upsert(2))
    with pytest.raises(grpc.RpcError) as caught:
        commit(stub, upsert(3), transaction=transaction)
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert caught.value.details() == CONTENTION
    with pytest.raises(grpc.RpcError) as caught:
        commit(stub, upsert(3), transaction=transaction)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == EXPIRED
    # Clients roll back before they retry: an error here would stop them.
    stub.call("Rollback", RollbackRequest(project_id=PROJECT, transaction=transaction))


def test_unsupported_requests_say_so(stub: Stub) -> None:
    nearest = RunQueryRequest(project_id=PROJECT, query=query())
    nearest.query.find_nearest.limit.value = 1
    with pytest.raises(grpc.RpcError, match="does not support") as caught:
        stub.call("RunQuery", nearest)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_request_of_ten_mebibytes(stub: Stub) -> None:
    mutations = [
        Mutation(upsert=entity(key("K", i + 1), blob=value(b"x" * 1_000_000, indexed=False)))
        for i in range(10)
    ]
    assert len(commit(stub, *mutations).mutation_results) == 10
    # The channel has gRPC's default limit of 4 MiB for received messages.
    batch = stub.call("RunQuery", RunQueryRequest(project_id=PROJECT, query=query())).batch
    assert 0 < len(batch.entity_results) < 10


def test_a_taken_port_is_refused(server: userlock_emulator.Emulator) -> None:
    port = int(server.host.rpartition(":")[2])
    with pytest.raises(userlock_emulator.PortInUseError, match=f"{port}.*taken"):
        userlock_emulator.start(port)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="available: optimistic, pessimistic, "):
        userlock_emulator.start(concurrency_mode="hopeful")


def test_stopping_twice_is_fine_and_frees_the_port() -> None:
    first = userlock_emulator.start()
    first.stop()
    first.stop()
    first.wait()
    port = int(first.host.rpartition(":")[2])
    with userlock_emulator.start(port) as second:
        stub = Stub(second.host)
        assert len(lookup(stub).missing) == 1
        stub.close()


def test_time_can_be_moved_by_hand() -> None:
    now = [1_000_000_000]
    with userlock_emulator.start(now=lambda: now[0]) as server:
        stub = Stub(server.host)
        first = commit(stub, upsert(1)).mutation_results[0]
        assert (first.update_time.seconds, first.version) == (1000, 1_000_000_000)
        now[0] += 60_000_000
        reply = lookup(stub)
        assert (reply.read_time.seconds, reply.found[0].update_time.seconds) == (1060, 1000)
        now[0] -= 30_000_000
        assert commit(stub, upsert(2)).mutation_results[0].version > 1_060_000_000
        stub.close()
