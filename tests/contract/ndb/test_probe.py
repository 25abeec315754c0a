"""What trying Datastore out tells, of servers of each kind."""

from __future__ import annotations

from typing import Any

import pytest
from google.cloud import ndb

import emulator
from tests.contract.ndb.servers import Wire, WithoutBaseVersion, WithoutVersions
from userlock.lock.store import Finding, Verdict
from userlock.ndb import server
from userlock.ndb.probe import BASE_VERSION, INSERTS, KIND, REACHABLE, VERSIONS, probe


class WithoutInserts(Wire):
    """A server to which an insert is an upsert."""

    def sent(self, name: str, request: Any) -> Any:
        if name == "commit":
            request = type(request)(request)
            for mutation in request.mutations:
                if "insert" in mutation:
                    mutation.upsert = mutation.insert
        return super().sent(name, request)


class WithoutBaseVersionOfDeletes(Wire):
    """A server that takes no notice of what a delete builds on."""

    def sent(self, name: str, request: Any) -> Any:
        if name == "commit":
            request = type(request)(request)
            for mutation in request.mutations:
                if "delete" in mutation:
                    type(mutation).pb(mutation).ClearField("base_version")
        return super().sent(name, request)


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.subject: finding.verdict.value for finding in findings}


def left_over(client: ndb.Client) -> int:
    with client.context():
        found: int = ndb.Query(kind=KIND).count()
    return found


FINE = {REACHABLE: "ok", VERSIONS: "ok", INSERTS: "ok", BASE_VERSION: "ok", "emulator": "warning"}


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Wire, set()),
        (WithoutVersions, {VERSIONS, BASE_VERSION}),
        (WithoutBaseVersion, {BASE_VERSION}),
        (WithoutBaseVersionOfDeletes, {BASE_VERSION}),
        (WithoutInserts, {INSERTS}),
    ],
)
def test_each_kind_of_server(ndb_client: ndb.Client, kind: type[Wire], wrong: set[str]) -> None:
    wire = kind(ndb_client)
    findings = probe(ndb_client)
    assert verdicts(findings) == {**FINE, **dict.fromkeys(wrong, "wrong")}
    assert all(finding.advice for finding in findings if finding.verdict is Verdict.WRONG)
    assert len(wire.rpcs) <= 12
    assert left_over(ndb_client) == 0


@pytest.mark.parametrize("skip", range(12))
@pytest.mark.parametrize("rpc", ["Commit", "Lookup", "RunQuery"])
def test_an_rpc_that_fails_is_a_finding(
    ndb_client: ndb.Client, datastore: emulator.Emulator, rpc: str, skip: int
) -> None:
    """Each one of them, and the entity is removed as far as can be."""
    fault = datastore.faults.unavailable(rpc=rpc, skip=skip)
    findings = verdicts(probe(ndb_client))
    datastore.faults.clear()
    if fault.hits:
        assert findings[REACHABLE] == "wrong"
        assert BASE_VERSION not in findings or skip > 5
    else:
        assert findings == FINE
    # Once is all that its removal is tried.
    assert left_over(ndb_client) == 0 or (rpc == "Commit" and fault.hits)


def test_a_named_database_and_a_namespace(datastore: emulator.Emulator, ndb_client: Any) -> None:
    client = ndb.Client(database="other", namespace="tenant")
    findings = probe(client)
    assert verdicts(findings) == FINE
    assert {finding.server for finding in findings} == {"datastore emulator/other"}


class TestAskingOnce:
    @pytest.fixture(autouse=True)
    def _as_in_a_new_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "_honoured", {})

    def test_a_server_is_asked_once(self, ndb_client: ndb.Client) -> None:
        wire = Wire(ndb_client)
        assert server.honours_base_version(ndb_client)
        asked = len(wire.rpcs)
        assert asked > 0
        assert server.honours_base_version(ndb_client)
        assert len(wire.rpcs) == asked

    def test_googles_own_is_not_asked(self, ndb_client: ndb.Client) -> None:
        wire = Wire(ndb_client)
        ndb_client.host = "datastore.googleapis.com"
        assert server.honours_base_version(ndb_client)
        assert not wire.rpcs

    def test_one_that_does_not_answer_is_asked_again(
        self, ndb_client: ndb.Client, datastore: emulator.Emulator
    ) -> None:
        wire = WithoutBaseVersion(ndb_client)
        with datastore.faults.unavailable(None):
            assert not server.honours_base_version(ndb_client), "as long as nobody knows"
        asked = len(wire.rpcs)
        assert not server.honours_base_version(ndb_client)
        assert len(wire.rpcs) > asked
