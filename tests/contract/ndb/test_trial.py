"""What trying the whole way out tells: through ndb, and what is hooked into it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from google.cloud import ndb
from google.cloud.ndb import _datastore_api

import emulator
from emulator.datastore.errors import Code
from emulator.datastore.faults import Rule
from tests.contract.ndb.servers import Wire, WithoutBaseVersion, WithoutVersions
from tests.contract.ndb.test_past_the_hooks import CHANGES, other_deletes
from tests.contract.ndb.test_probe import FINE, left_over, verdicts
from userlock.lock.store import Verdict
from userlock.ndb import server
from userlock.ndb.probe import REACHABLE
from userlock.ndb.releases import installed_release
from userlock.ndb.trial import THROUGH_NDB, examine, through_ndb


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATASTORE_EMULATOR_HOST", "127.0.0.1:1")
    findings = examine("nobody")
    assert verdicts(findings) == {REACHABLE: "wrong"}
    assert not findings[0].facts["up"]


def test_there_is_no_project(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_project(**kwargs: Any) -> None:
        raise OSError("Project was not passed and could not be determined from the environment.")

    monkeypatch.setattr(ndb, "Client", without_project)
    (finding,) = examine()
    assert (finding.subject, finding.verdict) == (REACHABLE, Verdict.WRONG)
    assert "could not be determined" in finding.says


def test_all_findings(datastore: emulator.Emulator, ndb_client: ndb.Client) -> None:
    findings = examine()
    assert verdicts(findings) == {**FINE, THROUGH_NDB: "ok"}
    assert list(verdicts(findings))[-2:] == [THROUGH_NDB, "emulator"]
    assert left_over(ndb_client) == 0


@pytest.mark.parametrize("kind", [Wire, WithoutVersions, WithoutBaseVersion])
def test_each_kind_of_server(
    ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch, kind: type[Wire]
) -> None:
    """Where Datastore does not refuse it, the library does, by comparing."""
    kind(ndb_client)
    monkeypatch.setattr(server, "_honoured", {})
    finding = through_ndb(ndb_client)
    assert (finding.verdict, finding.facts["fenced"]) == (Verdict.OK, True)
    assert installed_release() in finding.says
    assert left_over(ndb_client) == 0


@pytest.mark.parametrize("skip", range(12))
@pytest.mark.parametrize("rpc", ["Commit", "Lookup"])
def test_an_rpc_that_fails(
    ndb_client: ndb.Client, datastore: emulator.Emulator, rpc: str, skip: int
) -> None:
    wrong = Rule(name="wrong", code=Code.FAILED_PRECONDITION, rpc=rpc, skip=skip, count=None)
    fault = datastore.faults.plant(wrong)
    finding = through_ndb(ndb_client)
    datastore.faults.clear()
    # The last look-up is for why the delete was refused.
    if fault.hits and (rpc, skip) != ("Lookup", 4):
        assert (finding.subject, finding.verdict) == (THROUGH_NDB, Verdict.WRONG)
        assert "FailedPrecondition: 400" in finding.says
    else:
        assert (finding.subject, finding.verdict) == (THROUGH_NDB, Verdict.OK)


class TestAnotherNdb:
    """One that has all that is hooked into, and does not call it."""

    def wrong(self, client: ndb.Client) -> str:
        finding = through_ndb(client)
        assert (finding.subject, finding.verdict) == (THROUGH_NDB, Verdict.WRONG)
        assert finding.facts["fenced"] is False
        assert "install an older google-cloud-ndb" in finding.advice
        assert left_over(client) == 0
        return finding.says

    @pytest.mark.parametrize("change", CHANGES)
    def test_puts(
        self, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch, change: Any
    ) -> None:
        change(monkeypatch)
        assert "a put went past what userlock hooks into" in self.wrong(ndb_client)

    def test_deletes(self, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        other_deletes(monkeypatch)
        assert "a delete of an object that was out of date" in self.wrong(ndb_client)

    def test_reads(self, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is read is not known by its version then: it counts as new."""
        monkeypatch.setattr("userlock.ndb.handler.stamp_read", lambda *_: None)
        assert "what had just been read was refused" in self.wrong(ndb_client)

    def test_an_error(self, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch) -> None:
        def put(entity: Any, options: Any) -> Any:
            raise AttributeError("it has no such thing")

        monkeypatch.setattr(_datastore_api, "put", put)
        assert "ended with AttributeError: it has no such thing" in self.wrong(ndb_client)

    def test_nothing_is_found(
        self, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ndb.Key, "get", lambda self, **options: None)
        assert "was not found" in self.wrong(ndb_client)

    def test_a_put_that_is_carried_out(
        self, ndb_client: ndb.Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("userlock.ndb.fencing._version_to_match", lambda *_: 0)
        assert "a put of an object that was out of date was carried out" in self.wrong(ndb_client)


def test_an_ndb_that_cannot_be_hooked_into(datastore: emulator.Emulator) -> None:
    """In a process of its own: this one has the hooks in it."""
    code = (
        "from google.cloud.ndb import _datastore_api; del _datastore_api.lookup;"
        "from userlock.cli import main; raise SystemExit(main(['doctor', '--datastore']))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | datastore.env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 1, process.stderr
    assert "ndb._datastore_api:lookup is gone" in " ".join(process.stdout.split())
