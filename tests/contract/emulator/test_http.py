"""The service on the wire: gRPC, and HTTP/1.1 in protobuf and JSON, on one port."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import re
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import datastore_v1
from google.cloud.datastore_v1.services.datastore.transports import DatastoreRestTransport
from google.rpc.status_pb2 import Status
from grpc_health.v1 import health_pb2, health_pb2_grpc

import userlock_emulator
from tests.contract.emulator.conftest import Stub
from tests.unit.emulator.builders import PROJECT, entity, key, value
from tests.unit.emulator.subject import query
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator.datastore.protos import (
    CommitRequest,
    LookupRequest,
    LookupResponse,
    Message,
    Mutation,
    RunQueryRequest,
)
from userlock_emulator.datastore.rpcs import SERVICE

KEY = key("K", 1)
LOOKUP = LookupRequest(keys=[KEY])
PROTOBUF = "application/x-protobuf"
COMMIT = f"/v1/projects/{PROJECT}:commit"
Connection = http.client.HTTPConnection


@pytest.fixture
def connection(server: userlock_emulator.Emulator) -> Iterator[Connection]:
    connection = Connection(server.host, timeout=20)
    yield connection
    connection.close()


def post(connection: Connection, path: str, body: Any, content_type: str) -> tuple[int, bytes]:
    connection.request("POST", path, body, {"Content-Type": content_type})
    response = connection.getresponse()
    return response.status, response.read()


def call(
    connection: Connection, rpc: str, request: Message, project: str = PROJECT
) -> tuple[int, bytes]:
    path = f"/v1/projects/{project}:{rpc}"
    return post(connection, path, request.SerializeToString(), PROTOBUF)


def commit_request(*mutations: Message) -> Message:
    return CommitRequest(mode=CommitRequest.NON_TRANSACTIONAL, mutations=mutations)


@pytest.mark.parametrize(
    ("mutation", "http_status", "code", "text"),
    [
        (Mutation(insert=entity(KEY)), 409, "ALREADY_EXISTS", "entity already exists"),
        (Mutation(update=entity(key("K", 9))), 404, "NOT_FOUND", "no entity to update"),
        (Mutation(delete=key("K")), 400, "INVALID_ARGUMENT", "incomplete"),
        (
            Mutation(
                upsert=entity(KEY), base_version=1, conflict_resolution_strategy=Mutation.FAIL
            ),
            400,
            "FAILED_PRECONDITION",
            "does not match the required base version",
        ),
    ],
)
def test_errors(
    connection: Connection, stub: Stub, mutation: Message, http_status: int, code: str, text: str
) -> None:
    stub.put(entity(KEY))
    with pytest.raises(grpc.RpcError, match=text) as caught:
        stub.commit(mutation)
    assert caught.value.code() is grpc.StatusCode[code]
    status, body = call(connection, "commit", commit_request(mutation))
    error = Status.FromString(body)
    assert (status, error.code) == (http_status, grpc.StatusCode[code].value[0])
    assert text in error.message


def test_what_is_not_there(
    connection: Connection, stub: Stub, server: userlock_emulator.Emulator
) -> None:
    nearest = RunQueryRequest(project_id=PROJECT, query=query())
    nearest.query.find_nearest.limit.value = 1
    with pytest.raises(grpc.RpcError, match="does not support") as caught:
        stub.call("RunQuery", nearest)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    for rpc in ("Lookup", "find", ""):
        status, body = call(connection, rpc, LOOKUP)
        assert (status, Status.FromString(body).code) == (404, 5)
        assert "lookup, runQuery" in Status.FromString(body).message
    status, body = post(connection, f"/v1/projects/{PROJECT}:lookup", b"\xff", PROTOBUF)
    assert (status, Status.FromString(body).code) == (400, 3)
    server.faults.unavailable(rpc="Lookup")
    status, body = call(connection, "lookup", LOOKUP)
    assert (status, Status.FromString(body).code) == (503, 14)


LOOK_UP = {"keys": [{"path": [{"kind": "K", "id": "1"}]}]}
TEXT = json.dumps(LOOK_UP).encode()
# The same bytes in each process of a run: the time is left out.
GZIPPED = gzip.compress(TEXT, mtime=0)
TOO_LONG = gzip.compress(bytes(2**25), mtime=0)
HERE = {**LOOK_UP, "projectId": PROJECT}


@pytest.mark.parametrize(
    ("path", "body", "headers", "said"),
    [
        # As gcloud-aio-datastore and curl without -d write them.
        (":beginTransaction", b"", {"Content-Type": "application/json"}, b"transaction"),
        (":beginTransaction", b"", {}, b"transaction"),
        (":beginTransaction", b"", {"Content-Type": PROTOBUF}, b"\n"),
        (":beginTransaction", b"{}", {}, b"transaction"),
        (":lookup", json.dumps(HERE), {}, b'"kind": "K"'),
        (":lookup", json.dumps({**HERE, "projectId": "b"}), {}, b"INVALID_ARGUMENT"),
        (":lookup", b"\xef\xbb\xbf" + TEXT, {}, b'"kind": "K"'),
        (":lookup?$alt=json%3Benum-encoding=int&$.xgafv=2&prettyPrint=false", TEXT, {}, b"K"),
        (":lookup?databaseId=d", TEXT, {}, b'"missing"'),
        (":runQuery", b'{"query": {}}', {}, b'"moreResults": "NO_MORE_RESULTS"'),
        (":runQuery?$alt=json;enum-encoding=int", b'{"query": {}}', {}, b'"moreResults": 3'),
        (":lookup?a=1" + "&a=1" * 100, TEXT, {}, b"query of the URL"),
        (":lookup", GZIPPED, {"Content-Encoding": "gzip"}, b'"kind": "K"'),
        (":lookup", TEXT, {"Content-Encoding": "identity"}, b'"kind": "K"'),
        (":lookup", TEXT, {"Content-Encoding": "gzip"}, b"not in gzip"),
        (":lookup", GZIPPED[:-9], {"Content-Encoding": "gzip"}, b"not one whole"),
        (":lookup", TOO_LONG, {"Content-Encoding": "gzip"}, b"at most 16 MiB"),
        (":lookup", TEXT, {"Content-Encoding": "br"}, b"content encoding br is unknown"),
        (":lookup", TEXT[:-1] + b', "x": 1}', {}, b"is not a lookup request in JSON"),
        (":lookup", b"  ", {}, b"is not a lookup request in JSON"),
        (":lookup", b"null", {}, b"is not a lookup request in JSON"),
    ],
)
def test_requests_as_clients_write_them(
    connection: Connection, path: str, body: Any, headers: dict[str, str], said: bytes
) -> None:
    connection.request("POST", f"/v1/projects/{PROJECT}{path}", body, headers)
    response = connection.getresponse()
    text = response.read()
    assert said in text
    refused = any(word in text for word in (b"INVALID", b"gzip", b"16 MiB", b"encoding"))
    assert response.status == (400 if refused else 200)


def test_a_project_in_the_url(connection: Connection) -> None:
    request = LookupRequest(keys=[key("K", 1, project="example.com:project")])
    status, body = call(connection, "lookup", request, "example.com%3Aproject")
    assert (status, len(LookupResponse.FromString(body).missing)) == (200, 1)


def test_nine_megabytes(connection: Connection, stub: Stub) -> None:
    """Over HTTP like curl: first the head, and the body after a 100 Continue."""
    large = value(b" " * 1_000_000, indexed=False)
    request = commit_request(*(Mutation(upsert=entity(key("K", i + 1), b=large)) for i in range(9)))
    body = request.SerializeToString()
    connection.putrequest("POST", COMMIT)
    connection.putheader("Content-Type", PROTOBUF)
    connection.putheader("Content-Length", str(len(body)))
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    assert connection.sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(body)
    assert connection.getresponse().status == 200
    # The channel has gRPC's default limit of 4 MiB for received messages.
    batch = stub.run(query())
    assert 0 < len(batch.entity_results) < 9
    assert len(stub.commit(*request.mutations).mutation_results) == 9


def test_bodies_by_half_and_in_chunks(connection: Connection) -> None:
    body = commit_request(Mutation(upsert=entity(KEY, n=1))).SerializeToString()
    # A client was killed at a point where a shorter commit would have ended.
    connection.putrequest("POST", COMMIT)
    connection.putheader("Content-Type", PROTOBUF)
    connection.putheader("Content-Length", str(len(body) + 100))
    connection.endheaders(body)
    connection.sock.shutdown(socket.SHUT_WR)
    assert connection.sock.recv(1) == b""
    connection.close()
    assert LookupResponse.FromString(call(connection, "lookup", LOOKUP)[1]).missing
    for _ in range(2):
        pieces = (body[i : i + 7] for i in range(0, len(body), 7))
        assert post(connection, COMMIT, pieces, PROTOBUF)[0] == 200
    assert LookupResponse.FromString(call(connection, "lookup", LOOKUP)[1]).found


class TestJson:
    def test_the_official_client_that_speaks_json(self, server: userlock_emulator.Emulator) -> None:
        transport = DatastoreRestTransport(
            host=server.host, url_scheme="http", credentials=AnonymousCredentials()
        )
        client = datastore_v1.DatastoreClient(transport=transport)
        stored = entity(KEY, n=2**63 - 1, blob=b"\x00\xff", none=None, many=[1.5])
        written = datastore_v1.Entity(datastore_v1.Entity.wrap(stored))
        commit = {"project_id": PROJECT, "mode": 2, "mutations": [{"insert": written}]}
        assert client.commit(request=commit).mutation_results[0].version > 0
        with pytest.raises(exceptions.Conflict, match="entity already exists"):
            client.commit(request=commit)
        (found,) = client.lookup(request={"project_id": PROJECT, "keys": [written.key]}).found
        assert found.entity == written
        begun = client.begin_transaction(request={"project_id": PROJECT})
        client.rollback(request={"project_id": PROJECT, "transaction": begun.transaction})


class TestBeside:
    def test_health(self, connection: Connection, stub: Stub) -> None:
        for method, body in (("GET", b"Ok\n"), ("HEAD", b"")):
            connection.request(method, "/")
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, body)
        check = health_pb2_grpc.HealthStub(stub.channel).Check
        for name in ("", SERVICE):
            reply = check(health_pb2.HealthCheckRequest(service=name), timeout=20)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(health_pb2.HealthCheckRequest(service="other"), timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    def test_the_end(self) -> None:
        """Health watchers learn of it, and a request under way is answered before."""
        with userlock_emulator.start() as stopped:
            stub = Stub(stopped.host)
            watch = health_pb2_grpc.HealthStub(stub.channel).Watch
            seen = watch(health_pb2.HealthCheckRequest(), timeout=20)
            assert next(seen).status == health_pb2.HealthCheckResponse.SERVING
            connection = Connection(stopped.host, timeout=20)
            fault = stopped.faults.hold(rpc="Lookup")
            asked = Started(lambda: call(connection, "lookup", LOOKUP))
            fault.wait()
            stopping = Started(stopped.stop)
            assert next(seen).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert asked.result()[0] == 200
            stopping.result()
        connection.close()
        with pytest.raises(ConnectionRefusedError):
            connection.connect()
        stub.channel.close()

    def test_reset_of_every_project_database_and_namespace(
        self, connection: Connection, stub: Stub
    ) -> None:
        keys = []
        for project in ("one", "two"):
            for database, namespace in (("", ""), ("other", ""), ("", "space"), ("other", "space")):
                keys.append(key("K", 1, project=project, namespace=namespace))
                keys[-1].partition_id.database_id = database
                stub.put(entity(keys[-1]))
        connection.request("GET", "/reset")
        response = connection.getresponse()
        assert (response.status, response.read() != b"") == (405, True)
        assert all(map(stub.get, keys))
        assert post(connection, "/reset", b"", "")[0] == 200
        assert not any(map(stub.get, keys))

    def test_each_rpc_is_in_the_log(self, stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, "userlock_emulator"):
            stub.put(entity(KEY))
            with pytest.raises(grpc.RpcError, match="incomplete"):
                stub.get(key("K"))
        log = [record.getMessage() for record in caplog.records]
        assert re.fullmatch(r"Commit took \d+\.\d{3} ms: \d+ bytes in, \d+ bytes out", log[0])
        assert re.match(r"Lookup took .* bytes in, INVALID_ARGUMENT: ", log[1])


def test_time_can_be_moved_by_hand() -> None:
    now = [1_000_000_000]
    with userlock_emulator.start(now=lambda: now[0]) as server, Stub(server.host) as stub:
        first = stub.put(entity(KEY, n=1)).mutation_results[0]
        assert (first.update_time.seconds, first.version) == (1000, 1_000_000_000)
        now[0] += 60_000_000
        reply = stub.lookup(KEY)
        assert (reply.read_time.seconds, reply.found[0].update_time.seconds) == (1060, 1000)
        now[0] -= 30_000_000
        assert stub.put(entity(KEY, n=2)).mutation_results[0].version > 1_060_000_000


def test_a_wait_for_a_transaction_does_not_delay_the_end() -> None:
    server = userlock_emulator.start(project=PROJECT, concurrency_mode="pessimistic")
    with Stub(server.host) as stub:
        stub.get(KEY, transaction=stub.begin())
        waiting = Started(lambda: stub.put(entity(KEY)))
        wait_until(lambda: server.waiting == 1)
        server.stop(grace_seconds=0.1)
        with pytest.raises(grpc.RpcError) as caught:
            waiting.result()
        stopped = (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        assert caught.value.code() in stopped
