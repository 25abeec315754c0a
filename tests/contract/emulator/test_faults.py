"""Faults as the official clients see them, and added over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import google.cloud.ndb as ndb
import pytest
from google.api_core import exceptions
from google.cloud import datastore

import userlock_emulator
from tests.contract.emulator.process import EmulatorProcess
from tests.unit.emulator.waiting import Started


class Score(ndb.Model):
    points = ndb.IntegerProperty(default=0)

    @classmethod
    def _get_kind(cls) -> str:
        return "FaultyScore"


@pytest.fixture
def client(server: userlock_emulator.Emulator) -> datastore.Client:
    # Over gRPC: over HTTP the client has no names of its own for these errors.
    return datastore.Client()


def put(client: datastore.Client, points: int, kind: str = "Score") -> None:
    entity = datastore.Entity(client.key(kind, "ann"))
    entity["points"] = points
    client.put(entity)


def points(client: datastore.Client, kind: str = "Score") -> int | None:
    entity = client.get(client.key(kind, "ann"))
    return None if entity is None else entity["points"]


class TestDatastoreClient:
    def test_aborted(self, client: datastore.Client, server: userlock_emulator.Emulator) -> None:
        server.faults.abort()
        with pytest.raises(exceptions.Aborted, match="contention"):
            put(client, 1)
        assert points(client) is None
        put(client, 2)
        assert points(client) == 2

    def test_an_aborted_transaction(
        self, client: datastore.Client, server: userlock_emulator.Emulator
    ) -> None:
        def add() -> None:
            with client.transaction():
                put(client, (points(client) or 0) + 1)

        server.faults.abort(kind="Score")
        with pytest.raises(exceptions.Aborted):
            add()
        add()
        assert points(client) == 1

    def test_a_lost_reply(
        self, client: datastore.Client, server: userlock_emulator.Emulator
    ) -> None:
        server.faults.drop_reply()
        with pytest.raises(exceptions.ServiceUnavailable):
            put(client, 1)
        assert points(client) == 1

    def test_a_deadline(self, client: datastore.Client, server: userlock_emulator.Emulator) -> None:
        server.faults.deadline_exceeded(rpc="Commit")
        with pytest.raises(exceptions.DeadlineExceeded):
            put(client, 1)
        assert points(client) is None
        server.faults.deadline_exceeded(rpc="Commit", applied=True)
        with pytest.raises(exceptions.DeadlineExceeded):
            put(client, 1)
        assert points(client) == 1

    def test_reads_are_tried_again(
        self, client: datastore.Client, server: userlock_emulator.Emulator
    ) -> None:
        put(client, 1)
        fault = server.faults.unavailable(rpc="Lookup")
        assert points(client) == 1
        assert fault.hits == 1

    def test_another_kind_is_spared(
        self, client: datastore.Client, server: userlock_emulator.Emulator
    ) -> None:
        server.faults.abort(kind="Score")
        put(client, 1, kind="Other")
        with pytest.raises(exceptions.Aborted):
            put(client, 1)

    def test_an_interleaving(
        self, client: datastore.Client, server: userlock_emulator.Emulator
    ) -> None:
        """The purpose of holding a request: a fixed order of events, without sleeping."""
        with server.faults.hold() as held:
            late = Started(lambda: put(client, 1))
            held.wait()
            put(client, 2)
            assert points(client) == 2
        late.result()
        assert points(client) == 1

    def test_a_reset_removes_faults_too(
        self, client: datastore.Client, server: userlock_emulator.Emulator
    ) -> None:
        server.faults.abort(None)
        server.reset()
        put(client, 1)


class TestNdb:
    @pytest.fixture(autouse=True)
    def _context(self, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(ndb._retry, "_DEFAULT_INITIAL_DELAY", 0.001)
        with ndb_client.context(cache_policy=lambda key: False):
            yield

    def add(self) -> None:
        score = Score.get_by_id("ann") or Score(id="ann")
        score.points += 1
        score.put()

    def stored(self) -> int:
        stored: int = Score.get_by_id("ann").points
        return stored

    def test_ndb_sends_a_commit_again(self, server: userlock_emulator.Emulator) -> None:
        fault = server.faults.unavailable(rpc="Commit")
        self.add()
        assert (fault.hits, self.stored()) == (1, 1)

    def test_ndb_runs_a_transaction_again(self, server: userlock_emulator.Emulator) -> None:
        server.faults.abort(2, kind="FaultyScore")
        runs: list[int] = []

        @ndb.transactional()
        def add() -> None:
            runs.append(1)
            self.add()

        add()
        assert (len(runs), self.stored()) == (3, 1)

    def test_after_a_lost_reply_ndb_applies_a_transaction_twice(
        self, server: userlock_emulator.Emulator
    ) -> None:
        """The reason why a transaction has to be idempotent."""
        server.faults.drop_reply()
        runs: list[int] = []

        @ndb.transactional()
        def add() -> None:
            runs.append(1)
            self.add()

        add()
        assert (len(runs), self.stored()) == (2, 2)


def test_a_held_request_does_not_keep_the_emulator_from_stopping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with userlock_emulator.start() as stopped:
        monkeypatch.setenv("DATASTORE_EMULATOR_HOST", stopped.host)
        client = datastore.Client(project="stopped")
        held = stopped.faults.hold()
        call = Started(lambda: put(client, 1))
        held.wait()
    call.result()


def ask(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, Any]:
    """Send one HTTP request; return status and document."""
    request = urllib.request.Request(url, body, method=method)  # noqa: S310 - our own server
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def controlled() -> Iterator[userlock_emulator.Emulator]:
    with userlock_emulator.start() as running:
        yield running


class TestHttp:
    @pytest.fixture
    def faults(self, controlled: userlock_emulator.Emulator) -> str:
        controlled.reset()
        return f"http://{controlled.host}/faults"

    def plant(self, faults: str, **arguments: object) -> tuple[int, Any]:
        return ask(faults, "POST", json.dumps(arguments).encode())

    def test_plant_list_and_remove(
        self, controlled: userlock_emulator.Emulator, faults: str
    ) -> None:
        status, first = self.plant(faults, fault="abort", count=2, kind="Learner")
        assert status == 201
        assert (first["rpc"], first["kind"], first["count"]) == ("Commit", "Learner", 2)
        _, second = self.plant(faults, fault="delay", seconds=0.5, rpc="Lookup", count=None)
        assert ask(faults) == (200, {"faults": [first, second]})
        assert [fault.rule.name for fault in controlled.faults.planted] == ["abort", "delay"]
        assert ask(f"{faults}/{first['id']}", "DELETE") == (200, first)
        assert ask(f"{faults}/{first['id']}")[0] == 404
        assert ask(f"{faults}/{second['id']}") == (200, second)
        assert ask(faults, "DELETE") == (200, {"faults": []})
        assert not controlled.faults.planted

    @pytest.mark.parametrize(
        "name", ["abort", "unavailable", "deadline_exceeded", "drop_reply", "hold"]
    )
    def test_each_fault(self, faults: str, name: str) -> None:
        status, fault = self.plant(faults, fault=name)
        assert (status, fault["fault"]) == (201, name)

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            (b"", "not JSON"),
            (b"[]", "must be a JSON object"),
            (b"{}", "there is no fault None; there are: abort"),
            (b'{"fault": "plant"}', "there is no fault 'plant'"),
            (b'{"fault": "abort", "count": 0}', "at least 1"),
            (b'{"fault": "abort", "count": true}', "count cannot be True"),
            (b'{"fault": "abort", "kind": 7}', "kind cannot be 7"),
            (b'{"fault": "abort", "rpc": "Comit"}', "there is no RPC 'Comit'"),
            (b'{"fault": "abort", "knid": "K"}', "unexpected keyword argument 'knid'"),
            (b'{"fault": "delay"}', "missing 1 required positional argument: 'seconds'"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, controlled: userlock_emulator.Emulator, faults: str, body: bytes, says: str
    ) -> None:
        status, document = ask(faults, "POST", body)
        assert status == 400
        assert says in document["error"]
        assert not controlled.faults.planted

    def test_other_paths_and_methods(
        self, controlled: userlock_emulator.Emulator, faults: str
    ) -> None:
        assert ask(f"http://{controlled.host}/nothing")[0] == 404
        assert ask(faults, "PUT", b"{}")[0] == 405
        _, fault = self.plant(faults, fault="abort")
        assert ask(f"{faults}/{fault['id']}", "POST", b"{}")[0] == 405

    def test_in_a_process_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with EmulatorProcess() as process:
            monkeypatch.setenv("DATASTORE_EMULATOR_HOST", process.host)
            client = datastore.Client(project="faulty")
            self.plant(f"http://{process.host}/faults", fault="abort", kind="Score")
            with pytest.raises(exceptions.Aborted):
                put(client, 1)
            put(client, 2)
            assert points(client) == 2
