"""The service over HTTP/1.1, in protobuf and in JSON, and the other requests to that port."""

from __future__ import annotations

import http.client
import json
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
from tests.unit.emulator.builders import PROJECT, entity, key
from tests.unit.emulator.waiting import Started
from tests.waiting import wait_until
from userlock_emulator.datastore.errors import CONTENTION
from userlock_emulator.datastore.protos import (
    BeginTransactionRequest,
    CommitRequest,
    CommitResponse,
    LookupRequest,
    LookupResponse,
    Message,
    Mutation,
)
from userlock_emulator.datastore.rpcs import SERVICE

KEY = key("K", 1)
PROTOBUF = "application/x-protobuf"


@pytest.fixture
def connection(server: userlock_emulator.Emulator) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(server.host, timeout=20)
    yield connection
    connection.close()


def post(
    connection: http.client.HTTPConnection, path: str, body: bytes, content_type: str
) -> tuple[int, bytes]:
    connection.request("POST", path, body, {"Content-Type": content_type})
    response = connection.getresponse()
    return response.status, response.read()


def call(
    connection: http.client.HTTPConnection, rpc: str, request: Message, project: str = PROJECT
) -> tuple[int, bytes]:
    """Call an RPC in protobuf; return the status and the body."""
    path = f"/v1/projects/{project}:{rpc}"
    return post(connection, path, request.SerializeToString(), PROTOBUF)


def call_json(
    connection: http.client.HTTPConnection, rpc: str, document: object
) -> tuple[int, Any]:
    path = f"/v1/projects/{PROJECT}:{rpc}"
    status, body = post(connection, path, json.dumps(document).encode(), "application/json")
    return status, json.loads(body)


def commit_request(*mutations: Message) -> Message:
    return CommitRequest(mode=CommitRequest.NON_TRANSACTIONAL, mutations=mutations)


class TestProtobuf:
    def test_writes_over_http_are_read_over_grpc(
        self, connection: http.client.HTTPConnection, stub: Stub
    ) -> None:
        status, body = call(connection, "commit", commit_request(Mutation(upsert=entity(KEY, n=1))))
        assert status == 200
        (written,) = CommitResponse.FromString(body).mutation_results
        request = LookupRequest(project_id=PROJECT, keys=[KEY])
        (over_grpc,) = stub.call("Lookup", request).found
        # The same connection again, with the project from the URL.
        request.ClearField("project_id")
        status, body = call(connection, "lookup", request)
        (over_http,) = LookupResponse.FromString(body).found
        assert over_http == over_grpc
        assert over_http.version == written.version

    @pytest.mark.parametrize(
        ("mutation", "http_status", "code", "text"),
        [
            (Mutation(insert=entity(KEY)), 409, 6, "entity already exists"),
            (Mutation(update=entity(key("K", 9))), 404, 5, "no entity to update"),
            (Mutation(delete=key("K")), 400, 3, "incomplete"),
            (
                Mutation(
                    upsert=entity(KEY), base_version=1, conflict_resolution_strategy=Mutation.FAIL
                ),
                409,
                10,
                CONTENTION,
            ),
        ],
    )
    def test_errors(
        self,
        connection: http.client.HTTPConnection,
        mutation: Message,
        http_status: int,
        code: int,
        text: str,
    ) -> None:
        call(connection, "commit", commit_request(Mutation(upsert=entity(KEY))))
        status, body = call(connection, "commit", commit_request(mutation))
        error = Status.FromString(body)
        assert (status, error.code) == (http_status, code)
        assert text in error.message

    def test_a_planted_fault(
        self, connection: http.client.HTTPConnection, server: userlock_emulator.Emulator
    ) -> None:
        server.faults.unavailable(rpc="Lookup")
        status, body = call(connection, "lookup", LookupRequest(keys=[KEY]))
        assert (status, Status.FromString(body).code) == (503, 14)

    def test_invalid_requests(self, connection: http.client.HTTPConnection) -> None:
        path = f"/v1/projects/{PROJECT}:lookup"
        status, body = post(connection, path, b"\xff", PROTOBUF)
        assert (status, Status.FromString(body).code) == (400, 3)
        for rpc in ("Lookup", "find", ""):
            status, body = call(connection, rpc, LookupRequest(keys=[KEY]))
            assert (status, Status.FromString(body).code) == (404, 5)
            assert "lookup, runQuery" in Status.FromString(body).message

    def test_a_project_of_a_domain(self, connection: http.client.HTTPConnection) -> None:
        domain = key("K", 1, project="example.com:project")
        request = LookupRequest(keys=[domain])
        status, body = call(connection, "lookup", request, "example.com%3Aproject")
        assert (status, len(LookupResponse.FromString(body).missing)) == (200, 1)

    def test_nine_megabytes_that_come_when_they_are_asked_for(
        self, connection: http.client.HTTPConnection
    ) -> None:
        """Like curl: first the head, and the body after a 100 Continue."""
        body = commit_request(
            *(Mutation(upsert=entity(key("K", i + 1), b=" " * 1000)) for i in range(9_000))
        ).SerializeToString()
        assert len(body) > 9_000_000
        connection.putrequest("POST", f"/v1/projects/{PROJECT}:commit")
        connection.putheader("Content-Type", PROTOBUF)
        connection.putheader("Content-Length", str(len(body)))
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        assert connection.sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.send(body)
        response = connection.getresponse()
        assert response.status == 200
        assert len(CommitResponse.FromString(response.read()).mutation_results) == 9_000

    def test_a_body_in_chunks(self, connection: http.client.HTTPConnection) -> None:
        """Like programs that do not know the length in advance; twice on one connection."""
        body = commit_request(Mutation(upsert=entity(KEY, n=1))).SerializeToString()
        for _ in range(2):
            path = f"/v1/projects/{PROJECT}:commit"
            pieces = (body[i : i + 7] for i in range(0, len(body), 7))
            connection.request("POST", path, pieces, {"Content-Type": PROTOBUF})
            response = connection.getresponse()
            assert response.status == 200
            assert len(CommitResponse.FromString(response.read()).mutation_results) == 1

    def test_half_a_body_is_not_carried_out(
        self, connection: http.client.HTTPConnection, server: userlock_emulator.Emulator
    ) -> None:
        """The client disconnected, or was killed, at a point where a shorter commit would have
        ended.
        """
        first = commit_request(Mutation(upsert=entity(KEY, n=1))).SerializeToString()
        connection.putrequest("POST", f"/v1/projects/{PROJECT}:commit")
        connection.putheader("Content-Type", PROTOBUF)
        connection.putheader("Content-Length", str(len(first) + 100))
        connection.endheaders(first)
        connection.sock.shutdown(socket.SHUT_WR)
        assert connection.sock.recv(1) == b""
        connection.close()
        _, found = call(connection, "lookup", LookupRequest(keys=[KEY]))
        assert LookupResponse.FromString(found).missing

    def test_a_body_that_is_too_long(self, connection: http.client.HTTPConnection) -> None:
        connection.putrequest("POST", f"/v1/projects/{PROJECT}:commit")
        connection.putheader("Content-Length", str(2**30))
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 400
        assert b"at most 16 MiB" in response.read()


class TestJson:
    def test_commit_and_query(self, connection: http.client.HTTPConnection) -> None:
        path = [{"kind": "Task", "id": "9007199254740993"}]
        properties = {
            "n": {"integerValue": "9223372036854775807"},
            "x": {"doubleValue": 2.5},
            "at": {"timestampValue": "2024-01-02T03:04:05.678901Z"},
            "b": {"blobValue": "AAE=", "excludeFromIndexes": True},
            "none": {"nullValue": None},
        }
        mutation = {"insert": {"key": {"path": path}, "properties": properties}}
        status, committed = call_json(
            connection, "commit", {"mode": "NON_TRANSACTIONAL", "mutations": [mutation]}
        )
        assert status == 200
        assert int(committed["mutationResults"][0]["version"]) > 0
        ordered = {"kind": [{"name": "Task"}], "order": [{"property": {"name": "n"}}]}
        status, answer = call_json(connection, "runQuery", {"query": ordered})
        (found,) = answer["batch"]["entityResults"]
        assert status == 200
        assert found["entity"]["key"]["path"] == path
        assert found["entity"]["properties"] == properties

    def test_errors(self, connection: http.client.HTTPConnection) -> None:
        status, answer = call_json(connection, "lookup", {})
        assert status == 400
        assert answer["error"]["status"] == "INVALID_ARGUMENT"
        assert answer["error"]["code"] == 400
        status, answer = call_json(connection, "lookup", {"kyes": []})
        assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
        assert "kyes" in answer["error"]["message"]

    def test_the_official_client_that_speaks_json(self, server: userlock_emulator.Emulator) -> None:
        transport = DatastoreRestTransport(
            host=server.host, url_scheme="http", credentials=AnonymousCredentials()
        )
        client = datastore_v1.DatastoreClient(transport=transport)
        written = datastore_v1.Entity(
            datastore_v1.Entity.wrap(
                entity(KEY, n=2**63 - 1, blob=b"\x00\xff", none=None, many=[1.5])
            )
        )
        commit = {"project_id": PROJECT, "mode": 2, "mutations": [{"insert": written}]}
        assert client.commit(request=commit).mutation_results[0].version > 0
        with pytest.raises(exceptions.Conflict, match="entity already exists"):
            client.commit(request=commit)
        (found,) = client.lookup(request={"project_id": PROJECT, "keys": [written.key]}).found
        assert found.entity == written
        begun = client.begin_transaction(request={"project_id": PROJECT})
        client.rollback(request={"project_id": PROJECT, "transaction": begun.transaction})


class TestBeside:
    def test_health(self, connection: http.client.HTTPConnection) -> None:
        for method, body in (("GET", b"Ok\n"), ("HEAD", b"")):
            connection.request(method, "/")
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, body)

    def test_grpc_health(self, stub: Stub) -> None:
        check = health_pb2_grpc.HealthStub(stub.channel).Check
        serving = health_pb2.HealthCheckResponse.SERVING
        for name in ("", SERVICE):
            reply = check(health_pb2.HealthCheckRequest(service=name), timeout=20)
            assert reply.status == serving
        with pytest.raises(grpc.RpcError) as caught:
            check(health_pb2.HealthCheckRequest(service="other"), timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    def test_health_watchers_learn_that_it_stops(self) -> None:
        with userlock_emulator.start() as stopped:
            stub = Stub(stopped.host)
            watch = health_pb2_grpc.HealthStub(stub.channel).Watch
            seen = watch(health_pb2.HealthCheckRequest(), timeout=20)
            assert next(seen).status == health_pb2.HealthCheckResponse.SERVING
            stopping = Started(stopped.stop)
            assert next(seen).status == health_pb2.HealthCheckResponse.NOT_SERVING
            stopping.result()
        stub.close()

    def test_a_request_under_way_is_answered_before_the_end(self) -> None:
        with userlock_emulator.start() as stopped:
            connection = http.client.HTTPConnection(stopped.host, timeout=20)
            fault = stopped.faults.hold(rpc="Lookup")
            asked = Started(lambda: call(connection, "lookup", LookupRequest(keys=[KEY])))
            fault.wait()
        assert asked.result()[0] == 200
        connection.close()
        with pytest.raises(ConnectionRefusedError):
            connection.connect()


class TestReset:
    def reset(self, host: str) -> int:
        connection = http.client.HTTPConnection(host, timeout=20)
        status, _ = post(connection, "/reset", b"", "")
        connection.close()
        return status

    def test_every_project_database_and_namespace(
        self, connection: http.client.HTTPConnection, server: userlock_emulator.Emulator
    ) -> None:
        keys = [key("K", 1, project=project) for project in ("one", "two")]
        for each in list(keys):
            for database, namespace in (("other", ""), ("", "space"), ("other", "space")):
                copy = type(each)()
                copy.CopyFrom(each)
                copy.partition_id.database_id = database
                copy.partition_id.namespace_id = namespace
                keys.append(copy)

        def lookup(each: Message) -> Message:
            request = LookupRequest(keys=[each], database_id=each.partition_id.database_id)
            _, body = call(connection, "lookup", request, each.partition_id.project_id)
            return LookupResponse.FromString(body)

        for each in keys:
            request = commit_request(Mutation(upsert=entity(each)))
            request.database_id = each.partition_id.database_id
            status, _ = call(connection, "commit", request, each.partition_id.project_id)
            assert status == 200
            assert lookup(each).found
        assert self.reset(server.host) == 200
        assert not any(lookup(each).found for each in keys)

    def test_a_transaction_that_others_wait_for(self) -> None:
        """It ends, and so does the wait: nothing hangs."""
        with userlock_emulator.start(project=PROJECT, concurrency_mode="pessimistic") as server:
            stub = Stub(server.host)
            begun = stub.call("BeginTransaction", BeginTransactionRequest(project_id=PROJECT))
            locked = LookupRequest(project_id=PROJECT, keys=[KEY])
            locked.read_options.transaction = begun.transaction
            stub.call("Lookup", locked)
            put = commit_request(Mutation(upsert=entity(KEY)))
            put.project_id = PROJECT
            waiting = Started(lambda: stub.call("Commit", put))
            wait_until(lambda: server.waiting)
            assert self.reset(server.host) == 200
            waiting.result()
            with pytest.raises(grpc.RpcError, match="expired"):
                stub.call("Lookup", locked)
            stub.close()

    def test_only_post(self, connection: http.client.HTTPConnection) -> None:
        connection.request("GET", "/reset")
        assert connection.getresponse().status == 405
