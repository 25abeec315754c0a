"""The findings about servers of each kind; a server without versions is refused."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.api_core.exceptions import ServiceUnavailable
from google.cloud import ndb

import userlock
from tests.contract.ndb.actions import forget_reads
from tests.contract.ndb.gates import Simple, stored
from tests.contract.ndb.servers import Wire, WithoutBaseVersion, WithoutVersions, connect
from userlock.admin.health import Finding, Verdict, findings
from userlock.admin.ndb import checks_of
from userlock.ndb import capabilities
from userlock.ndb.capabilities import BASE_VERSION, INSERTS, KIND, REACHABLE, VERSIONS
from userlock_emulator import Emulator


class WithoutInserts(Wire):
    """A server to which an insert is an upsert."""

    def sent(self, name: str, request: Any) -> Any:
        if name == "commit":
            request = type(request)(request)
            for mutation in request.mutations:
                if "insert" in mutation:
                    mutation.upsert = mutation.insert
        return super().sent(name, request)


class Repeating(Wire):
    """A server behind a proxy that sends each commit twice, and passes on the second reply."""

    def sent(self, name: str, request: Any) -> Any:
        request = super().sent(name, request)
        if name == "commit":
            with contextlib.suppress(grpc.RpcError):
                self._stub.commit(request)
        return request


class OtherVersionOfUpserts(Wire):
    """A server whose reply to an upsert has another version than its look-ups."""

    def received(self, name: str, reply: Any) -> Any:
        reply = super().received(name, reply)
        if name == "commit" and not reply.mutation_results[0].conflict_detected:
            reply.mutation_results[0].version += self.sent_upsert
        return reply

    def sent(self, name: str, request: Any) -> Any:
        self.sent_upsert = name == "commit" and "upsert" in request.mutations[0]
        return super().sent(name, request)


class WithoutBaseVersionOfDeletes(Wire):
    """A server that ignores the `base_version` of deletes."""

    def sent(self, name: str, request: Any) -> Any:
        if name == "commit":
            request = type(request)(request)
            for mutation in request.mutations:
                if "delete" in mutation:
                    type(mutation).pb(mutation).ClearField("base_version")
        return super().sent(name, request)


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.subject: finding.verdict.value for finding in findings}


def probe(client: ndb.Client) -> list[Finding]:
    """Return the findings about a server's capabilities alone."""
    return findings("datastore", checks_of(client, write=False))


def left_over(client: ndb.Client) -> int:
    with client.context():
        found: int = ndb.Query(kind=KIND).count()
    return found


FINE = {REACHABLE: "ok", VERSIONS: "ok", INSERTS: "ok", BASE_VERSION: "ok", "emulator": "warning"}


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Wire, set()),
        (Repeating, set()),
        (WithoutVersions, {VERSIONS, BASE_VERSION}),
        (OtherVersionOfUpserts, {BASE_VERSION}),
        (WithoutBaseVersion, {BASE_VERSION}),
        (WithoutBaseVersionOfDeletes, {BASE_VERSION}),
        (WithoutInserts, {INSERTS}),
    ],
)
def test_each_kind_of_server(ndb_client: ndb.Client, kind: type[Wire], wrong: set[str]) -> None:
    wire = connect(ndb_client, kind)
    findings = probe(ndb_client)
    assert verdicts(findings) == {**FINE, **dict.fromkeys(wrong, "wrong")}
    assert all(finding.advice for finding in findings if finding.verdict is Verdict.WRONG)
    assert len(wire.rpcs) <= 12
    assert left_over(ndb_client) == 0


@pytest.mark.parametrize("rpc", ["Commit", "Lookup", "RunQuery"])
def test_an_rpc_that_fails_is_a_finding(
    ndb_client: ndb.Client, datastore: Emulator, rpc: str
) -> None:
    """This holds for each of them, and the entity is removed as far as possible."""
    for skip in itertools.count():
        fault = datastore.faults.unavailable(rpc=rpc, skip=skip)
        findings = verdicts(probe(ndb_client))
        datastore.faults.clear()
        if not fault.hits:
            break
        assert findings[REACHABLE] == "wrong"
        assert BASE_VERSION not in findings or skip > 5
        # Once is all that its removal is tried.
        assert left_over(ndb_client) == 0 or rpc == "Commit"
        datastore.reset()
    assert skip > 0
    assert findings == FINE
    assert left_over(ndb_client) == 0


def test_a_named_database_and_a_namespace(datastore: Emulator, ndb_client: Any) -> None:
    client = ndb.Client(database="other", namespace="tenant")
    findings = probe(client)
    assert verdicts(findings) == FINE


@pytest.fixture
def _as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capabilities, "_honoured", {})


@pytest.mark.usefixtures("_as_in_a_new_process")
class TestAskingOnce:
    def test_a_server_is_asked_once(self, ndb_client: ndb.Client) -> None:
        wire = connect(ndb_client, Wire)
        assert capabilities.honours_base_version(ndb_client)
        asked = len(wire.rpcs)
        assert asked > 0
        assert capabilities.honours_base_version(ndb_client)
        assert len(wire.rpcs) == asked

    def test_the_real_datastore_is_not_asked(self, ndb_client: ndb.Client) -> None:
        wire = connect(ndb_client, Wire)
        ndb_client.host = "datastore.googleapis.com"
        assert capabilities.honours_base_version(ndb_client)
        assert not wire.rpcs

    def test_an_answer_that_is_lost_once_is_asked_for_again(
        self, ndb_client: ndb.Client, datastore: Emulator
    ) -> None:
        fault = datastore.faults.drop_reply(rpc="Commit")
        assert capabilities.honours_base_version(ndb_client)
        assert fault.hits

    def test_a_server_that_does_not_answer_is_asked_again(
        self, ndb_client: ndb.Client, datastore: Emulator
    ) -> None:
        """Without an answer, the result is neither yes nor no: a put raises Datastore's error."""
        wire = connect(ndb_client, WithoutBaseVersion)
        with datastore.faults.unavailable(None), pytest.raises(ServiceUnavailable):
            capabilities.honours_base_version(ndb_client)
        asked = len(wire.rpcs)
        assert capabilities.honours_base_version(ndb_client) is False
        assert len(wire.rpcs) > asked


# --- a server that cannot refuse a stale write ---------------------------------------------


def put(entity: Any) -> None:
    entity.points = 7
    entity.put()


def delete(entity: Any) -> None:
    entity.key.delete()


Write = Callable[[Any], None]
EACH_WRITE = pytest.mark.parametrize("write", [put, delete])


class TestRefused:
    """Every put and delete of an entity that was read there is refused."""

    @pytest.fixture(autouse=True)
    def _simple(self, context: Any, _as_in_a_new_process: None) -> None:
        """Provide an entity that exists, on a server that was not asked yet."""
        Simple(id="ann").put()
        forget_reads()
        capabilities._honoured.clear()

    def read(self, client: ndb.Client, kind: type[Wire]) -> Any:
        connect(client, kind)
        return Simple.get_by_id("ann")

    def check(self, entity: Any, write: Write, reason: str, remedy: str) -> None:
        with pytest.raises(userlock.WriteNotFenced) as caught:
            write(entity)
        error = caught.value
        assert error.key == entity.key
        assert "test_capabilities.py" in str(error.put_at)
        assert write.__name__ in str(error.put_at)
        verb = "deleted" if write is delete else "put"
        assert re.search(rf"was not {verb}: .*{reason}", str(error))
        assert re.search(rf"  To fix it: .*{remedy}", str(error))
        assert stored(Simple) == 0, "nothing was written"

    @EACH_WRITE
    @pytest.mark.parametrize(
        ("kind", "reason", "remedy"),
        [
            (
                WithoutBaseVersion,
                "takes no notice of base_version",
                r"use Google's Datastore or userlock-emulator; .*configure\(fencing=False\)",
            ),
            (WithoutVersions, "it was read without its version", "read it again"),
        ],
    )
    def test_also_when_it_is_known(
        self, ndb_client: ndb.Client, kind: type[Wire], reason: str, remedy: str, write: Write
    ) -> None:
        entity = self.read(ndb_client, kind)
        for _ in range(2):
            self.check(entity, write, reason, remedy)

    @pytest.mark.parametrize("kind", [WithoutVersions, WithoutBaseVersion])
    def test_a_write_without_a_read_is_sent(self, ndb_client: ndb.Client, kind: type[Wire]) -> None:
        """A new entity is an insert, and a delete without a read builds on no version."""
        connect(ndb_client, kind)
        Simple(id="new").put()
        with pytest.raises(userlock.EntityExistsError):
            Simple(id="ann", points=7).put()
        forget_reads()
        ndb.Key(Simple, "new").delete()
        assert Simple.get_by_id("new", use_cache=False) is None
        assert stored(Simple) == 0

    def test_in_a_transaction_base_version_is_not_needed(self, ndb_client: ndb.Client) -> None:
        """The library compares by itself, and Datastore guards the reads of a transaction."""
        entity = self.read(ndb_client, WithoutBaseVersion)
        ndb.transaction(lambda: put(entity))
        assert stored(Simple) == 7

    def test_in_a_transaction_a_version_is(self, ndb_client: ndb.Client) -> None:
        entity = self.read(ndb_client, WithoutVersions)
        with pytest.raises(userlock.WriteNotFenced):
            ndb.transaction(lambda: put(entity))
        assert stored(Simple) == 0
        ndb.transaction(lambda: put(Simple.get_by_id("ann")))  # of what was read before
        assert stored(Simple) == 7

    @EACH_WRITE
    @pytest.mark.parametrize("kind", [WithoutVersions, WithoutBaseVersion])
    def test_without_fencing_it_goes_through(
        self, ndb_client: ndb.Client, kind: type[Wire], write: Write
    ) -> None:
        userlock.configure(fencing=False)
        write(self.read(ndb_client, kind))
        assert stored(Simple) == (None if write is delete else 7)

    @EACH_WRITE
    def test_a_capable_server_gets_them_all(self, ndb_client: ndb.Client, write: Write) -> None:
        """The negative control."""
        write(self.read(ndb_client, Wire))
        assert stored(Simple) == (None if write is delete else 7)
